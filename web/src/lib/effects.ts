/** Cause and effect on one screen: if a control changes only what is out of sight, scroll there and flash it. */
const DRAWN = ['d', 'x', 'x1', 'x2', 'y', 'y1', 'y2', 'cx', 'cy', 'width', 'height', 'fill', 'stroke', 'style', 'src'];
/** Milliseconds without a change of the page before it is looked at. */
const CALM = 40;
/** Pixels of a changed element that must be in sight. */
const SEEN = 60;

/** Watch the views of the room while its controls are used. An action for the element that contains the room. */
export function effects(main: HTMLElement): { destroy: () => void } {
  const changed = new Set<Element>();
  const before = new Map<HTMLCanvasElement, string>();
  let timer: ReturnType<typeof setTimeout> | undefined;
  const observer = new MutationObserver((records) => {
    for (const { target, addedNodes } of records)
      for (const node of addedNodes.length ? addedNodes : [target]) {
        const element = node instanceof Element ? node : node.parentElement;
        if (element?.closest('.views .body, .views .error')) changed.add(element);
      }
    wait();
  });
  function wait() {
    clearTimeout(timer);
    timer = setTimeout(look, CALM);
  }
  function look() {
    if (!document.documentElement.hasAttribute('data-idle')) return wait();
    observer.disconnect();
    main.removeAttribute('data-watching');
    const shown = [...changed].filter((element) => element.isConnected && element.getBoundingClientRect().height > 0 && !same(element));
    changed.clear();
    before.clear();
    if (!shown.some(inSight)) reveal(shown.sort((a, b) => top(a) - top(b))[0]);
  }
  /** Whether a picture was redrawn as it was. */
  const same = (element: Element) => element instanceof HTMLCanvasElement && before.get(element) === thumbnail(element);
  function used(event: Event) {
    if (!(event.target as Element).closest('.controls')) return;
    if (!before.size) for (const canvas of main.querySelectorAll('canvas')) before.set(canvas, thumbnail(canvas));
    main.setAttribute('data-watching', ''); // tests wait for its end
    observer.observe(main, { subtree: true, childList: true, characterData: true, attributeFilter: DRAWN });
    wait();
  }
  const events = ['input', 'change', 'click'];
  for (const name of events) main.addEventListener(name, used);
  return {
    destroy() {
      clearTimeout(timer);
      observer.disconnect();
      for (const name of events) main.removeEventListener(name, used);
    },
  };
}

const top = (element: Element): number => element.getBoundingClientRect().top;

/** The lowest visible row of pixels: a dock may cover what is below. */
function bottomOfSight(): number {
  const controls = document.querySelector('.controls');
  return controls && getComputedStyle(controls).position === 'fixed' ? top(controls) : innerHeight;
}

function inSight(element: Element): boolean {
  const box = element.getBoundingClientRect();
  const seen = Math.min(box.bottom, bottomOfSight()) - Math.max(box.top, 0);
  return seen >= Math.min(SEEN, box.height);
}

/** A picture at a size that is quick to compare. */
function thumbnail(canvas: HTMLCanvasElement): string {
  const small = new OffscreenCanvas(48, 48);
  const pen = small.getContext('2d', { willReadFrequently: true })!;
  if (canvas.width && canvas.height) pen.drawImage(canvas, 0, 0, 48, 48);
  return pen.getImageData(0, 0, 48, 48).data.join();
}

/** Scroll to an element, with its whole panel if that fits, and flash the panel. */
export function reveal(element: Element | undefined): void {
  if (!element) return;
  const panel = element.closest('.panel') ?? element;
  const sight = bottomOfSight();
  const whole = element.getBoundingClientRect().bottom - top(panel) + 20 < sight;
  const smooth = !matchMedia('(prefers-reduced-motion: reduce)').matches;
  const from = whole ? top(panel) - 10 : top(element) - Math.max(10, (sight - element.getBoundingClientRect().height) / 2);
  scrollTo({ top: scrollY + from, behavior: smooth ? 'smooth' : 'instant' });
  panel.classList.add('flash');
  panel.addEventListener('animationend', () => panel.classList.remove('flash'), { once: true });
}
