/** Save views as files: PNG, SVG, CSV. */
const STYLES = ['fill', 'stroke', 'stroke-width', 'stroke-dasharray', 'opacity', 'fill-opacity', 'font-size',
  'font-family', 'font-weight', 'text-anchor', 'dominant-baseline', 'paint-order'] as const; // prettier-ignore

export function download(name: string, blob: Blob): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Serialise a drawing; computed styles become attributes, since the file has no stylesheet. */
export function svgText(drawing: SVGSVGElement): string {
  const copy = drawing.cloneNode(true) as SVGSVGElement;
  const originals = [drawing, ...drawing.querySelectorAll<SVGElement>('*')];
  const copies = [copy, ...copy.querySelectorAll<SVGElement>('*')];
  originals.forEach((original, index) => {
    const style = getComputedStyle(original);
    for (const name of STYLES) copies[index].setAttribute(name, style.getPropertyValue(name));
    copies[index].removeAttribute('class');
    copies[index].removeAttribute('style');
  });
  const { width, height } = drawing.viewBox.baseVal;
  copy.setAttribute('xmlns', 'http://www.w3.org/2000/svg');
  copy.setAttribute('width', String(width));
  copy.setAttribute('height', String(height));
  const paper = document.createElementNS('http://www.w3.org/2000/svg', 'rect');
  paper.setAttribute('width', String(width));
  paper.setAttribute('height', String(height));
  paper.setAttribute('fill', getComputedStyle(document.documentElement).getPropertyValue('--paper').trim());
  copy.prepend(paper);
  return new XMLSerializer().serializeToString(copy);
}

export async function svgToPng(drawing: SVGSVGElement, scale = 2): Promise<Blob> {
  const { width, height } = drawing.viewBox.baseVal;
  const image = new Image();
  const source = URL.createObjectURL(new Blob([svgText(drawing)], { type: 'image/svg+xml' }));
  image.src = source;
  await image.decode();
  const canvas = document.createElement('canvas');
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.getContext('2d')!.drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(source);
  return canvasToPng(canvas);
}

export function canvasToPng(canvas: HTMLCanvasElement): Promise<Blob> {
  return new Promise((resolve, reject) =>
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error('the canvas is empty'))), 'image/png'),
  );
}

export type Row = Record<string, string | number | boolean | null>;

export function csvText(rows: Row[]): string {
  const columns = Object.keys(rows[0] ?? {});
  const cell = (value: Row[string]) => {
    const text = value === null ? '' : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [columns, ...rows.map((row) => columns.map((name) => cell(row[name])))]
    .map((line) => line.join(','))
    .join('\n')
    .concat('\n');
}
