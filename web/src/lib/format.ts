/** Format numbers for display. */
function three(value: number): string {
  const size = Math.abs(value);
  if (size >= 999.5 || Number.isInteger(value)) return Math.round(value).toLocaleString('en');
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

export function bytes(count: number): string {
  for (const [unit, size] of [['TiB', 2 ** 40], ['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]] as const)
    if (Math.abs(count) >= size) return `${three(count / size)} ${unit}`;
  return `${count.toLocaleString('en')} B`;
}

export function count(value: number, unit = ''): string {
  for (const [letter, size] of [['E', 1e18], ['P', 1e15], ['T', 1e12], ['G', 1e9], ['M', 1e6], ['k', 1e3]] as const)
    if (Math.abs(value) >= size) return `${three(value / size)} ${letter}${unit}`;
  return `${three(value)} ${unit}`.trim();
}

export const whole = (value: number): string => Math.round(value).toLocaleString('en');
export const number = three;
/** The largest batch that fits. */
export const batches = (value: number): string => (value === 0 ? 'none fits' : whole(value));
export const flops = (value: number): string => count(value, 'FLOP');
export const percent = (share: number): string =>
  share > 0 && share < 0.001 ? '< 0.1 %' : `${(100 * share).toFixed(share < 0.0995 || share > 0.99 ? 1 : 0)} %`;

export function seconds(value: number): string {
  if (value >= 1) return `${three(value)} s`;
  return value >= 1e-3 ? `${three(value * 1e3)} ms` : `${three(value * 1e6)} µs`;
}

/** Format a change as 4×, ÷ 2.5, or = if equal. */
export function ratio(now: number, before: number): string {
  if (now === before) return '=';
  if (before === 0 || now === 0) return now > before ? 'new' : 'none';
  const factor = now / before;
  if (Math.abs(factor - 1) < 0.005) return '≈';
  return factor > 1 ? `${three(factor)}×` : `÷ ${three(1 / factor)}`;
}
