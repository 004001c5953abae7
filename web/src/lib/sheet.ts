/** A panel as one SVG that needs no stylesheet: texts, boxes, drawings and pictures where they are seen. */
const NS = 'http://www.w3.org/2000/svg';
const SKIPPED = '.menu, summary, .hidden, .explain, [popover], input[type="range"], input[type="radio"], input[type="checkbox"], option';
const STYLES = ['stroke-width', 'stroke-dasharray', 'stroke-linejoin', 'stroke-linecap', 'opacity', 'fill-opacity',
  'stroke-opacity', 'font-size', 'font-family', 'font-weight', 'font-style', 'text-anchor', 'dominant-baseline', 'paint-order'] as const; // prettier-ignore
const SPARE = /^(class|style|role|tabindex|aria-.*|data-.*)$/;
const DENSITY = 2;

const probe = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true })!;
const known = new Map<string, { colour: string; alpha: number }>();

/** Any CSS colour as #rrggbb and an opacity, which every program that opens an SVG reads. */
function plain(css: string): { colour: string; alpha: number } {
  let found = known.get(css);
  if (!found) {
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = '#0000';
    probe.fillStyle = css;
    probe.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = probe.getImageData(0, 0, 1, 1).data;
    found = { colour: `#${[red, green, blue].map((byte) => byte.toString(16).padStart(2, '0')).join('')}`, alpha: alpha / 255 };
    known.set(css, found);
  }
  return found;
}

type Attributes = Record<string, string | number>;

export class Sheet {
  readonly root = document.createElementNS(NS, 'svg');
  /** The size in CSS pixels, as far as something was drawn. */
  width: number;
  height: number;
  #clips = 0;
  readonly #origin: DOMRect;

  /** @param least The smallest text of drawings, in CSS pixels. */
  constructor(
    place: Element,
    private readonly margin: number,
    private readonly least = 0,
  ) {
    this.#origin = place.getBoundingClientRect();
    this.width = this.#origin.width + 2 * margin;
    this.height = this.#origin.height + 2 * margin;
  }

  /** Draw an element with everything inside it, in the order of the document. */
  draw(element: Element, into: SVGElement = this.root): void {
    const style = getComputedStyle(element);
    if (element.matches(SKIPPED)) return;
    if (style.display !== 'contents' && !element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) return;
    const box = element.getBoundingClientRect();
    let group = into;
    if (Number(style.opacity) < 1) group = this.#add(group, 'g', { opacity: style.opacity });
    if (['hidden', 'clip'].includes(style.overflowX) && !(element instanceof SVGElement)) group = this.#clipped(group, box);
    if (element instanceof SVGSVGElement) return this.#drawing(element, box, group);
    if (element instanceof HTMLCanvasElement || element instanceof HTMLImageElement) this.#picture(element, box, style, group);
    this.#box(box, style, group);
    if (element instanceof HTMLSelectElement || element instanceof HTMLInputElement) {
      const text = element instanceof HTMLSelectElement ? (element.selectedOptions[0]?.text ?? '') : element.value;
      return this.#line(text, box.left + parseFloat(style.paddingLeft), this.#baseline(box, style), style, group);
    }
    if (style.display === 'list-item' && style.listStyleType !== 'none') this.#marker(element, box, style, group);
    for (const child of element.childNodes) {
      if (child instanceof Text) this.#text(child, style, group);
      else if (child instanceof Element) this.draw(child, group);
    }
  }

  /** Write lines below everything, wrapped to the width. */
  caption(lines: string[], style: CSSStyleDeclaration): void {
    const [size, family, inset] = [12, style.getPropertyValue('--sans').trim(), parseFloat(style.paddingLeft)];
    probe.font = `${size}px ${family}`;
    const room = this.width - 2 * inset;
    const wrapped = lines.flatMap((line) => {
      const rows: string[] = [''];
      for (const word of line.split(' ')) {
        const longer = `${rows.at(-1)} ${word}`.trim();
        if (probe.measureText(longer).width <= room) rows[rows.length - 1] = longer;
        else rows.push(word);
      }
      return rows;
    });
    const [ink, rule] = ['--ink-soft', '--line'].map((name) => plain(style.getPropertyValue(name)).colour);
    this.#add(this.root, 'rect', { x: inset, y: this.height, width: room, height: 1, fill: rule });
    this.height += 0.5 * size;
    for (const line of wrapped) {
      this.height += 1.45 * size;
      const text = this.#add(this.root, 'text', { x: inset, y: this.height, fill: ink, 'font-size': size, 'font-family': family });
      text.textContent = line;
    }
    this.height += inset;
  }

  /** The finished SVG, `wide` in units of CSS, such as 88mm; by default in pixels. */
  finish(title: string, about: string, paper: string, wide?: { width: number; unit: string }): SVGSVGElement {
    const scale = wide ? wide.width / this.width : 1;
    const unit = wide?.unit ?? 'px';
    const { root } = this;
    root.setAttribute('xmlns', NS);
    root.setAttribute('viewBox', `0 0 ${round(this.width)} ${round(this.height)}`);
    root.setAttribute('width', `${round(this.width * scale)}${unit}`);
    root.setAttribute('height', `${round(this.height * scale)}${unit}`);
    const ground = document.createElementNS(NS, 'rect');
    for (const [name, value] of Object.entries({ width: '100%', height: '100%', fill: plain(paper).colour })) ground.setAttribute(name, value);
    const words = [['title', title], ['desc', about]].map(([tag, text]) => {
      const node = document.createElementNS(NS, tag);
      node.textContent = text;
      return node;
    });
    root.prepend(...words, ground);
    return root;
  }

  #add(into: SVGElement, tag: string, attributes: Attributes): SVGElement {
    const node = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes))
      node.setAttribute(name, typeof value === 'number' ? String(round(value)) : value);
    return into.appendChild(node);
  }

  /** A box in the sheet's own coordinates; the sheet grows to hold it. */
  #place(box: DOMRect, grow = 0): { x: number; y: number; width: number; height: number } {
    const place = {
      x: box.left - this.#origin.left + this.margin - grow,
      y: box.top - this.#origin.top + this.margin - grow,
      width: box.width + 2 * grow,
      height: box.height + 2 * grow,
    };
    this.width = Math.max(this.width, place.x + place.width + this.margin);
    return place;
  }

  #clipped(into: SVGElement, box: DOMRect): SVGElement {
    const id = `clip${++this.#clips}`;
    this.#add(this.#add(into, 'clipPath', { id }), 'rect', this.#place(box));
    return this.#add(into, 'g', { 'clip-path': `url(#${id})` });
  }

  #rect(place: Attributes, css: string, into: SVGElement, kind: 'fill' | 'stroke' = 'fill', more: Attributes = {}): void {
    const { colour, alpha } = plain(css);
    if (alpha === 0) return;
    const opacity: Attributes = alpha < 1 ? { [`${kind}-opacity`]: alpha } : {};
    this.#add(into, 'rect', { ...place, ...(kind === 'stroke' ? { fill: 'none' } : {}), [kind]: colour, ...opacity, ...more });
  }

  #box(box: DOMRect, style: CSSStyleDeclaration, into: SVGElement): void {
    const place = this.#place(box);
    const radius = parseFloat(style.borderTopLeftRadius);
    this.#rect({ ...place, ...(radius ? { rx: radius } : {}) }, style.backgroundColor, into);
    // bars are gradients of two colours that meet at a share of the width
    const bar = /^linear-gradient\(to right, (.+\)) ([\d.]+)%, (.+\)) [\d.]+%\)$/.exec(style.backgroundImage);
    if (bar) {
      const part = (place.width * Number(bar[2])) / 100;
      this.#rect({ ...place, width: part }, bar[1], into);
      this.#rect({ ...place, x: place.x + part, width: place.width - part }, bar[3], into);
    }
    const ring = /^(.+\)) 0px 0px 0px ([\d.]+)px$/.exec(style.boxShadow);
    if (ring) this.#rect(this.#place(box, Number(ring[2]) / 2), ring[1], into, 'stroke', { 'stroke-width': Number(ring[2]) });
    const outline = style.outlineStyle === 'solid' ? parseFloat(style.outlineWidth) : 0;
    if (outline) this.#rect(this.#place(box, outline / 2 + parseFloat(style.outlineOffset)), style.outlineColor, into, 'stroke', { 'stroke-width': outline });
    const { x, y, width, height } = place;
    for (const side of ['Top', 'Right', 'Bottom', 'Left'] as const) {
      const thick = style[`border${side}Style`] === 'none' ? 0 : parseFloat(style[`border${side}Width`]);
      if (!thick) continue;
      const edge = {
        Top: { x, y, width, height: thick },
        Right: { x: x + width - thick, y, width: thick, height },
        Bottom: { x, y: y + height - thick, width, height: thick },
        Left: { x, y, width: thick, height },
      }[side];
      this.#rect(edge, style[`border${side}Color`], into);
    }
  }

  #picture(source: HTMLCanvasElement | HTMLImageElement, box: DOMRect, style: CSSStyleDeclaration, into: SVGElement): void {
    const [wide, tall] = source instanceof HTMLCanvasElement ? [source.width, source.height] : [source.naturalWidth, source.naturalHeight];
    if (!wide || !tall || !box.width || !box.height) return;
    const copy = document.createElement('canvas');
    const cells = style.imageRendering === 'pixelated'; // not every program has such a setting: write the pixels as drawn
    copy.width = cells ? Math.max(wide, Math.round(box.width * DENSITY)) : wide;
    copy.height = cells ? Math.max(tall, Math.round(box.height * DENSITY)) : tall;
    const pen = copy.getContext('2d')!;
    pen.imageSmoothingEnabled = !cells;
    pen.drawImage(source, 0, 0, copy.width, copy.height);
    this.#add(into, 'image', { ...this.#place(box), preserveAspectRatio: 'none', href: copy.toDataURL() });
  }

  #drawing(drawing: SVGSVGElement, box: DOMRect, into: SVGElement): void {
    const copy = drawing.cloneNode(true) as SVGSVGElement;
    const view = drawing.viewBox.baseVal;
    const shrunk = view?.width ? Math.min(box.width / view.width, box.height / view.height) : 1;
    const originals = [drawing, ...drawing.querySelectorAll<SVGElement>('*')];
    [copy, ...copy.querySelectorAll<SVGElement>('*')].forEach((node, index) => {
      const style = getComputedStyle(originals[index]);
      for (const { name } of [...node.attributes]) if (SPARE.test(name)) node.removeAttribute(name);
      if (style.display === 'none' || style.visibility === 'hidden') return node.setAttribute('display', 'none');
      for (const name of STYLES) node.setAttribute(name, style.getPropertyValue(name));
      for (const kind of ['fill', 'stroke'] as const) {
        const css = style.getPropertyValue(kind);
        if (css === 'none' || css.startsWith('url(')) node.setAttribute(kind, css);
        else {
          const { colour, alpha } = plain(css);
          node.setAttribute(kind, colour);
          if (alpha < 1) node.setAttribute(`${kind}-opacity`, String(round(alpha * Number(style.getPropertyValue(`${kind}-opacity`)))));
        }
      }
      if (node.localName === 'text' && parseFloat(style.fontSize) * shrunk < this.least)
        node.setAttribute('font-size', `${round(this.least / shrunk)}px`);
    });
    for (const [name, value] of Object.entries(this.#place(box))) copy.setAttribute(name, String(round(value)));
    copy.setAttribute('overflow', getComputedStyle(drawing).overflowX);
    into.append(copy);
  }

  #marker(item: Element, box: DOMRect, style: CSSStyleDeclaration, into: SVGElement): void {
    const index = [...item.parentElement!.children].indexOf(item) + 1;
    const line = new DOMRect(box.left, box.top + parseFloat(style.paddingTop), 0, parseFloat(style.lineHeight));
    this.#line(style.listStyleType === 'decimal' ? `${index}.` : '•', box.left - 6, this.#baseline(line, style), style, into, { 'text-anchor': 'end' });
  }

  /** Write a text node, one element per line that it has on the page. */
  #text(node: Text, style: CSSStyleDeclaration, into: SVGElement): void {
    const range = document.createRange();
    const lines: { from: number; to: number; box: DOMRect }[] = [];
    const take = (from: number, to: number) => {
      range.setStart(node, from);
      range.setEnd(node, to);
      const boxes = [...range.getClientRects()].filter(({ width }) => width > 0);
      if (boxes.length > 1 && to - from > 1) {
        for (let at = from; at < to; at++) take(at, at + 1); // a word that is broken
        return;
      }
      const [box] = boxes;
      if (!box) return;
      const line = lines.at(-1);
      if (line && Math.abs(line.box.top - box.top) < 2 && box.left >= line.box.left) {
        line.to = to;
        line.box = new DOMRect(line.box.left, line.box.top, box.right - line.box.left, line.box.height);
      } else lines.push({ from, to, box });
    };
    for (const word of node.data.matchAll(/\S+/g)) take(word.index, word.index + word[0].length);
    for (const { from, to, box } of lines) {
      const words = node.data.slice(from, to).replaceAll(/\s+/g, ' ');
      this.#place(box);
      this.#line(words, box.left, this.#baseline(box, style), style, into, { textLength: box.width, lengthAdjust: 'spacingAndGlyphs' });
    }
  }

  /** The baseline of one line of text in a box, in the page's coordinates. */
  #baseline(box: DOMRect, style: CSSStyleDeclaration): number {
    probe.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    const { fontBoundingBoxAscent: above, fontBoundingBoxDescent: below } = probe.measureText('x');
    return box.top + (box.height - above - below) / 2 + above;
  }

  #line(words: string, left: number, baseline: number, style: CSSStyleDeclaration, into: SVGElement, more: Attributes = {}): void {
    const { colour, alpha } = plain(style.color);
    const text = this.#add(into, 'text', {
      x: left - this.#origin.left + this.margin,
      y: baseline - this.#origin.top + this.margin,
      fill: colour,
      ...(alpha < 1 ? { 'fill-opacity': alpha } : {}),
      'font-size': style.fontSize,
      'font-family': style.fontFamily,
      'font-weight': style.fontWeight,
      ...(style.fontStyle === 'normal' ? {} : { 'font-style': style.fontStyle }),
      ...(style.fontVariantNumeric === 'normal' ? {} : { 'font-variant': style.fontVariantNumeric }),
      ...more,
    });
    text.textContent = style.textTransform === 'uppercase' ? words.toUpperCase() : words;
  }
}

const round = (value: number) => Math.round(1000 * value) / 1000;
