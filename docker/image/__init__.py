"""What `scripts/images` does: builds the images, pushes them, joins platforms under tags, tries them out."""
