// What a reader of a view would stumble over: asked of the page by test_layout.py.
window.layout = (() => {
  const figure = () => document.querySelector("[data-figure]");
  const named = (element) => {
    const said = element.closest("[data-testid]")?.dataset.testid ?? "";
    return `${element.tagName.toLowerCase()}.${element.getAttribute("class") ?? ""} in ${said}`;
  };
  const hidden = (element) => !element.checkVisibility({ opacityProperty: true, visibilityProperty: true });

  /** The texts below an element, each with the four corners of its letters. */
  function texts(root) {
    const found = [];
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const parent = node.parentElement;
      if (!node.data.trim() || hidden(parent) || parent.closest("option, textarea, select, title")) continue;
      const size = parseFloat(getComputedStyle(parent).fontSize);
      if (parent instanceof SVGElement) {
        const [box, matrix] = [parent.getBBox(), parent.getScreenCTM()];
        const [middle, half] = [box.y + box.height / 2, Math.min(box.height, 0.8 * size) / 2];
        const corners = [[box.x, middle - half], [box.x + box.width, middle - half], [box.x + box.width, middle + half], [box.x, middle + half]];
        found.push({ parent, words: node.data.trim(), size, corners: corners.map(([x, y]) => { const p = new DOMPoint(x, y).matrixTransform(matrix); return [p.x, p.y]; }) });
        continue;
      }
      const turned = turnOf(parent, root);
      const range = document.createRange();
      range.selectNodeContents(node);
      if (turned) {
        const box = turned.element.getBoundingClientRect();
        const [x, y, wide] = [box.left + box.width / 2, box.top + box.height / 2, turned.element.offsetWidth / 2];
        const [cos, sin] = [Math.cos(turned.angle), Math.sin(turned.angle)];
        const corner = (a, b) => [x + a * cos - b * sin, y + a * sin + b * cos];
        const high = 0.4 * size;
        found.push({ parent, words: node.data.trim(), size, corners: [corner(-wide, -high), corner(wide, -high), corner(wide, high), corner(-wide, high)] });
      } else {
        const short = parent.closest("[title]") && getComputedStyle(parent).textOverflow === "ellipsis" ? parent.getBoundingClientRect().right : Infinity;
        for (const { left, right: end, top, height, width } of range.getClientRects()) {
          if (width < 1 || left >= short) continue;
          const box = { left, top, height, right: Math.min(end, short) };
          const [middle, half] = [box.top + box.height / 2, Math.min(box.height, 0.8 * size) / 2];
          found.push({ parent, words: node.data.trim(), size, corners: [[box.left, middle - half], [box.right, middle - half], [box.right, middle + half], [box.left, middle + half]] });
        }
      }
    }
    return found;
  }
  function turnOf(element, root) {
    for (let one = element; one && one !== root; one = one.parentElement) {
      const value = getComputedStyle(one).transform;
      if (value === "none") continue;
      const matrix = new DOMMatrix(value);
      if (Math.abs(matrix.b) > 0.01) return { element: one, angle: Math.atan2(matrix.b, matrix.a) };
    }
    return undefined;
  }
  function bounds(corners) {
    const [xs, ys] = [corners.map((one) => one[0]), corners.map((one) => one[1])];
    return { left: Math.min(...xs), right: Math.max(...xs), top: Math.min(...ys), bottom: Math.max(...ys) };
  }
  /** By how much two quads lie over each other, along the axis where it is least. */
  function overlap(a, b) {
    let least = Infinity;
    for (const quad of [a, b]) {
      for (const [from, to] of [[0, 1], [1, 2]]) {
        const [x, y] = [quad[to][0] - quad[from][0], quad[to][1] - quad[from][1]];
        const long = Math.hypot(x, y) || 1;
        const along = (one) => one.map(([p, q]) => (p * x + q * y) / long);
        const [first, second] = [along(a), along(b)];
        least = Math.min(least, Math.min(Math.max(...first), Math.max(...second)) - Math.max(Math.min(...first), Math.min(...second)));
      }
    }
    return least;
  }

  /** What is wrong with where things stand. */
  function faults() {
    const [root, wrong] = [figure(), []];
    const top = root.getBoundingClientRect().top + scrollY;
    if (document.documentElement.scrollWidth > innerWidth) wrong.push(`the page is ${document.documentElement.scrollWidth} wide in a window of ${innerWidth}`);
    if (top > innerHeight / 2) wrong.push(`the figure begins at ${Math.round(top)} of ${innerHeight}`);
    for (const one of [root, ...root.querySelectorAll("*")]) if (one.scrollLeft > 0) wrong.push(`${named(one)} opens scrolled by ${one.scrollLeft}`);
    for (const one of [root, ...root.querySelectorAll("*")]) {
      const style = getComputedStyle(one);
      if (!/auto|scroll/.test(style.overflowX) || one.scrollWidth <= one.clientWidth + 1) continue;
      if (innerWidth >= 1000 && !one.closest("[data-wide]")) wrong.push(`${named(one)} is ${one.scrollWidth} wide in a box of ${one.clientWidth}`);
      if (style.backgroundImage === "none") wrong.push(`${named(one)} can be scrolled, and nothing says so`);
    }
    const all = texts(root).map((one) => ({ ...one, box: bounds(one.corners) }));
    for (const one of all) {
      const cut = clipped(one, root);
      if (cut) wrong.push(`"${one.words}" at ${Math.round(one.box.left)} to ${Math.round(one.box.right)} is cut by ${cut}`);
    }
    for (let y = 0; y < document.documentElement.scrollHeight; y += innerHeight) {
      scrollTo(0, y);
      for (const one of texts(root)) {
        const above = covered(one);
        if (above) wrong.push(`"${one.words}" is covered by ${above}`);
      }
    }
    scrollTo(0, 0);
    for (let i = 0; i < all.length; i++) {
      for (let j = i + 1; j < all.length; j++) {
        const [a, b] = [all[i], all[j]];
        if (a.parent === b.parent) continue; // lines of one text
        if (a.box.right < b.box.left + 1 || b.box.right < a.box.left + 1 || a.box.bottom < b.box.top + 1 || b.box.bottom < a.box.top + 1) continue;
        if (overlap(a.corners, b.corners) > 1.5) wrong.push(`"${a.words}" (${named(a.parent)}) and "${b.words}" (${named(b.parent)}) lie over each other`);
      }
    }
    return wrong;
  }
  function clipped({ parent, box, size }, root) {
    for (let one = parent; one; one = one.parentElement) {
      const style = getComputedStyle(one);
      const edge = one.getBoundingClientRect();
      if (style.textOverflow === "ellipsis" && one.closest("[title]")) return undefined; // shortened, with the full text as its title
      if (/hidden|clip/.test(style.overflowX)) {
        if (one instanceof SVGSVGElement || one instanceof HTMLElement)
          if (box.left < edge.left - 1 || box.right > edge.right + 1 || box.top < edge.top - 2 || box.bottom > edge.bottom + 2) return named(one);
      } else if (/auto|scroll/.test(style.overflowX)) {
        const zoom = one.currentCSSZoom; // of projector mode: of the boxes, but not of the lengths of an element
        const [x, y] = [edge.left + zoom * (one.clientLeft - one.scrollLeft), edge.top + zoom * (one.clientTop - one.scrollTop)];
        return box.left < x - 1 || box.top < y - 1 || box.right > x + zoom * (one.scrollWidth + size) || box.bottom > y + zoom * one.scrollHeight + 1 ? named(one) : undefined;
      }
      if (one === root) return undefined;
    }
    return undefined;
  }
  /** What opaque thing stands over an end of a text that is in sight. */
  function covered({ parent, corners }) {
    for (const share of [0.04, 0.96]) {
      const x = corners[0][0] + share * (corners[1][0] - corners[0][0]) + (corners[3][0] - corners[0][0]) / 2;
      const y = corners[0][1] + share * (corners[1][1] - corners[0][1]) + (corners[3][1] - corners[0][1]) / 2;
      if (x < 0 || y < 0 || x >= innerWidth || y >= innerHeight || !inSight(parent, x, y)) continue;
      const above = document.elementFromPoint(x, y);
      if (!above || above.contains(parent) || parent.contains(above) || !(above instanceof HTMLElement)) continue;
      for (let one = above; one && !one.contains(parent); one = one.parentElement) if (solid(getComputedStyle(one).backgroundColor)) return named(one);
    }
    return undefined;
  }
  const solid = (colour) => alpha(colour)[3] > 0.5;
  function inSight(element, x, y) {
    for (let one = element; one; one = one.parentElement) {
      if (getComputedStyle(one).overflowX === "visible") continue;
      const edge = one.getBoundingClientRect();
      if (x < edge.left || x > edge.right || y < edge.top || y > edge.bottom) return false;
    }
    return true;
  }

  // ------------------------------------------------------------------ contrast
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const known = new Map();
  /** Red, green, blue from 0 to 255 and opacity from 0 to 1 of a colour as CSS writes it. */
  function alpha(colour) {
    if (!known.has(colour)) {
      pen.clearRect(0, 0, 1, 1);
      pen.fillStyle = colour === "none" ? "transparent" : colour;
      pen.fillRect(0, 0, 1, 1);
      const [red, green, blue, opacity] = pen.getImageData(0, 0, 1, 1).data;
      known.set(colour, [red, green, blue, opacity / 255]);
    }
    return known.get(colour);
  }
  const over = (top, below) => [0, 1, 2].map((at) => top[at] * top[3] + below[at] * (1 - top[3])).concat(1);
  function light([red, green, blue]) {
    const part = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(red) + 0.7152 * part(green) + 0.0722 * part(blue);
  }
  /** The colour on which a text stands: that of the boxes around it, and for a drawing of the shapes before it. */
  function paper(parent) {
    const layers = [];
    if (parent instanceof SVGElement) {
      const box = parent.getBoundingClientRect();
      const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
      for (const shape of parent.ownerSVGElement.querySelectorAll("rect, circle")) {
        if (!(shape.compareDocumentPosition(parent) & Node.DOCUMENT_POSITION_FOLLOWING) || hidden(shape)) continue;
        const edge = shape.getBoundingClientRect();
        const style = getComputedStyle(shape);
        if (x >= edge.left && x <= edge.right && y >= edge.top && y <= edge.bottom && style.fill !== "none") {
          const fill = alpha(style.fill);
          layers.unshift([...fill.slice(0, 3), fill[3] * parseFloat(style.fillOpacity) * parseFloat(style.opacity)]);
        }
      }
    }
    for (let one = parent; one; one = one.parentElement) if (one instanceof HTMLElement) layers.push(alpha(getComputedStyle(one).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1]);
  }
  /** Texts that are too pale, or whose ground is too dark for them. */
  function pale() {
    const wrong = new Set();
    for (const { parent, words } of texts(document.body)) {
      if (parent.closest("button:disabled, [aria-disabled=true]")) continue;
      const style = getComputedStyle(parent);
      const ground = paper(parent);
      let ink = alpha(parent instanceof SVGElement ? style.fill : style.color);
      for (let one = parent; one; one = one.parentElement) ink = [...ink.slice(0, 3), ink[3] * parseFloat(getComputedStyle(one).opacity)];
      const [one, other] = [light(over(ink, ground)), light(ground)].sort((a, b) => b - a);
      const ratio = (one + 0.05) / (other + 0.05);
      if (ratio < 4.495) wrong.add(`"${words}" (${named(parent)}): ${ratio.toFixed(2)}`);
    }
    return [...wrong];
  }

  /** How often Tab stops before it has been everywhere. */
  function stops() {
    const all = [...document.querySelectorAll("a[href], button, input, select, textarea, [tabindex]")];
    return all.filter((one) => one.tabIndex >= 0 && !one.disabled && one.checkVisibility({ visibilityProperty: true })).length;
  }
  return { faults, pale, stops };
})();
