"""An HTTP endpoint that turns images into vectors: `vitrail serve`."""
