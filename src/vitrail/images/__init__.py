"""Images: a guarded decoder, folders of images, measurements, and generated pictures."""
