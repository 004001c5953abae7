/** Cells of a square grid over the map: each shows the image that is nearest to its centre. */
import type { Pair } from '../../lib/api';

export interface Cell {
  /** The image that is shown. */
  place: number;
  /** The number of images in the cell. */
  count: number;
  /** The centre, in the map's own units. */
  centre: Pair;
}

export interface Cells {
  cells: Cell[];
  /** The cell of every image. */
  of: Cell[];
}

export function cellsOf(points: readonly Pair[], side: number): Cells {
  const found = new Map<string, Cell & { apart: number }>();
  const of = points.map(([x, y], place) => {
    const [column, row] = [Math.floor(x / side), Math.floor(y / side)];
    const centre: Pair = [(column + 0.5) * side, (row + 0.5) * side];
    const apart = (x - centre[0]) ** 2 + (y - centre[1]) ** 2;
    const key = `${column},${row}`;
    const cell = found.get(key);
    if (!cell) {
      const first = { place, count: 1, centre, apart };
      found.set(key, first);
      return first;
    }
    cell.count += 1;
    if (apart < cell.apart) Object.assign(cell, { place, apart });
    return cell;
  });
  return { cells: [...found.values()], of };
}

/** The nearest cell in a direction, at most 45° off; none at the edge. */
export function cellBeside(cells: readonly Cell[], from: Pair, [right, up]: Pair): Cell | null {
  let best: Cell | null = null;
  let least = Infinity;
  for (const cell of cells) {
    const [dx, dy] = [cell.centre[0] - from[0], cell.centre[1] - from[1]];
    const [along, aside] = [dx * right + dy * up, Math.abs(dx * up) + Math.abs(dy * right)];
    if (along <= 0 || aside > along) continue;
    const apart = along + 2 * aside;
    if (apart < least) [best, least] = [cell, apart];
  }
  return best;
}
