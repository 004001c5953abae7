/** Figures of a panel: as it is seen, with a caption; or for a paper, with a journal's widths and fonts. */
import type { Values } from './address';
import { density } from './density.svelte';
import { Sheet } from './sheet';
import { studio, type Model } from './state.svelte';
import { applyTheme, theme } from './theme.svelte';

/** The widths of one and two columns of a journal's page, in millimetres. */
export const COLUMNS = [88, 180] as const;
const JOURNAL = "Helvetica, Arial, 'Liberation Sans', sans-serif";
const PIXELS_PER_MM = 96 / 25.4;
/** CSS pixels of the page per pixel of the figure: text of 13.9 px becomes 8 pt, and the smallest labels 6 pt. */
const SHRINK = 1.305;
const LEAST = 8 * SHRINK;
/** Canvas pixels per CSS pixel: about 500 per inch of the paper. */
const PAPER_DENSITY = 4;

interface Words {
  title: string;
  caption: string[];
}

/** The whole panel in its current theme, with title and caption. */
export function figure(panel: HTMLElement, { title, caption }: Words): Promise<SVGSVGElement> {
  return density.raised(2, () => {
    const style = getComputedStyle(panel);
    const sheet = new Sheet(panel, 0);
    for (const child of panel.children) sheet.draw(child);
    sheet.caption(caption, style);
    return sheet.finish(title, caption.join('; '), style.backgroundColor);
  });
}

/** The panel's content alone, laid out again for a column, in black on white; title and caption are its metadata. */
export async function paperFigure(body: HTMLElement, { title, caption }: Words, millimetres: number): Promise<SVGSVGElement> {
  const own = { width: `${millimetres * PIXELS_PER_MM * SHRINK}px`, 'font-family': JOURNAL, '--sans': JOURNAL, '--serif': JOURNAL };
  for (const [name, value] of Object.entries(own)) body.style.setProperty(name, value);
  theme.dark = false;
  document.documentElement.dataset.theme = 'light';
  try {
    return await density.raised(PAPER_DENSITY, async () => {
      await painted();
      const sheet = new Sheet(body, 2, LEAST);
      sheet.draw(body);
      return sheet.finish(title, caption.join('; '), 'white', { width: millimetres, unit: 'mm' });
    });
  } finally {
    for (const name of Object.keys(own)) body.style.removeProperty(name);
    applyTheme();
  }
}

/** Wait until views have been drawn in their new size. */
async function painted(): Promise<void> {
  for (let frame = 0; frame < 3; frame++) await new Promise(requestAnimationFrame);
}

/** What a panel shows, in words: the model with its input, and the room's other settings. */
export function captionOf(model: Model | undefined): string[] {
  const models = [...studio.names('planned'), ...studio.names('loaded')];
  const rest = studio.catalogue.rooms[studio.room].filter((name) => !models.includes(name) && matters(name));
  const settings = rest.map((name) => setting(name, studio.values).replaceAll(' ', '\u00a0')).filter(Boolean);
  return [[document.title, ...(model ? [modelWords(model)] : [])].join(' · '), settings.join(' · ')].filter(Boolean);
}

/** Whether a setting has a part in what is shown: a control without effect is not on the page. */
function matters(name: string): boolean {
  if (name === 'image' || document.querySelector(`[data-control="${name}"]`)) return true;
  return studio.values[name] !== studio.control(name).default; // chosen by a click on a picture
}

function modelWords(model: Model): string {
  const { values } = studio;
  if (model === 'planned')
    return `model ${values.model}, image ${values.height} × ${values.width} px, patch ${values.patch_height} × ${values.patch_width} px`;
  const described = studio.options('weights').find(([value]) => value === values.weights)?.[1];
  const words = described?.includes(': ') ? `${values.weights} (${described.split(': ')[0]})` : values.weights;
  const side = studio.number('seen');
  const size = side ? [side, side] : studio.range('seen').automatic;
  return studio.names('loaded').includes('seen') && size ? `model ${words}, image ${size.join(' × ')} px` : `model ${words}`;
}

function setting(name: string, values: Values): string {
  const { label, unit, kind, zero } = studio.control(name);
  const value = values[name];
  if (value === -1) return ''; // the room's own choice
  if (value === 0 && zero) return `${label}: ${zero}`;
  if (kind === 'flag') return `${label}: ${value ? 'yes' : 'no'}`;
  const words = kind === 'choice' ? studio.options(name).find(([each]) => each === value)?.[1] : undefined;
  return `${label}: ${words ?? value}${unit ? ` ${unit}` : ''}`;
}
