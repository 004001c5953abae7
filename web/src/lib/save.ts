/** Save files: pictures, tables, and what is printed. */
export function download(name: string, blob: Blob): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export const svgFile = (drawing: SVGSVGElement): Blob =>
  new Blob([new XMLSerializer().serializeToString(drawing)], { type: 'image/svg+xml' });

/** Rasterise a drawing at `density` pixels per CSS pixel. */
export async function pngFile(drawing: SVGSVGElement, density = 2): Promise<Blob> {
  const { width, height } = drawing.viewBox.baseVal;
  const image = new Image();
  const source = URL.createObjectURL(svgFile(drawing));
  image.src = source;
  await image.decode();
  const canvas = document.createElement('canvas');
  canvas.width = Math.round(width * density);
  canvas.height = Math.round(height * density);
  canvas.getContext('2d')!.drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(source);
  return new Promise((resolve, reject) =>
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error('the picture is too large'))), 'image/png'),
  );
}

/** Print a drawing alone, on a page of its own size: the browser's dialog saves it as a PDF with vectors and fonts. */
export function printAlone(drawing: SVGSVGElement): void {
  const sheet = document.createElement('div');
  sheet.className = 'sheet';
  sheet.append(drawing);
  const page = new CSSStyleSheet();
  page.replaceSync(`@page { size: ${drawing.getAttribute('width')} ${drawing.getAttribute('height')}; margin: 0 }`);
  document.adoptedStyleSheets.push(page);
  document.body.append(sheet);
  const end = () => {
    sheet.remove();
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((each) => each !== page);
  };
  addEventListener('afterprint', end, { once: true });
  print();
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
