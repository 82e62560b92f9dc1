// A link from another site comes without the cookie, so it is requested from here. The wanted address is then opened by a
// navigation of this page's own; the address in between makes it a new one even where only the fragment differs.
const form = document.querySelector("form");
function enter() {
  const wanted = "/" + location.search + location.hash;
  history.replaceState(null, "", "/?" + Date.now());
  location.replace(wanted);
}
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const [field, button, alert] = ["input", "button", "[role=alert]"].map((one) => form.querySelector(one));
  alert.textContent = "";
  button.disabled = true;
  try {
    const body = JSON.stringify({ token: field.value });
    const answer = await fetch("/login", { method: "POST", headers: { "content-type": "application/json" }, body });
    if (answer.ok) return enter();
    alert.textContent = (await answer.json()).error;
  } catch {
    alert.textContent = "the explorer is not responding";
  }
  button.disabled = false;
  field.select();
});
fetch("/login").then((answer) => answer.ok && enter(), () => {});
