/** The current image as something a canvas can draw; loaded once per id. */
let kept: { id: string; image: Promise<HTMLImageElement> } | null = null;

export function picture(id: string): Promise<HTMLImageElement> {
  if (kept?.id !== id) kept = { id, image: load(`./api/images/${encodeURIComponent(id)}/pixels?side=1024`) };
  return kept.image;
}

async function load(source: string): Promise<HTMLImageElement> {
  const image = new Image();
  image.src = source;
  await image.decode();
  return image;
}

/** The middle of the image, as large as it goes in the shape that a model gets: left, top, width, height. */
export function middle(image: HTMLImageElement, height: number, width: number): [number, number, number, number] {
  const scale = Math.min(image.naturalHeight / height, image.naturalWidth / width);
  const [across, down] = [width * scale, height * scale];
  return [(image.naturalWidth - across) / 2, (image.naturalHeight - down) / 2, across, down];
}
