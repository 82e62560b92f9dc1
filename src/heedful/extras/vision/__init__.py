"""What an image model has learned: filters, feature maps, gradients, occlusion, attention, and probes of its layers.

Functions take any image model (`heedful.models.roles.ImageEncoder`), and images (B, C, Y, X) as it reads them:
normalized floats. `ImageClassifier.inputs` makes them of files and arrays.
"""
