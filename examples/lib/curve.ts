/** A line chart as SVG. */

export interface Curve {
  title: string;
  xLabel: string;
  yLabel: string;
  values: readonly number[];
  /** Range of the y axis. */
  from: number;
  to: number;
}

const WIDTH = 640;
const HEIGHT = 360;
const MARGIN = { left: 56, right: 16, top: 36, bottom: 44 };
const TICKS = 5;

export function drawCurve({ title, xLabel, yLabel, values, from, to }: Curve): string {
  const width = WIDTH - MARGIN.left - MARGIN.right;
  const height = HEIGHT - MARGIN.top - MARGIN.bottom;
  const x = (i: number) => MARGIN.left + (values.length < 2 ? 0 : (i / (values.length - 1)) * width);
  const y = (value: number) => MARGIN.top + height - ((value - from) / (to - from)) * height;
  const ticks = Array.from({ length: TICKS + 1 }, (_, i) => from + ((to - from) * i) / TICKS);
  const points = values.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(' ');
  const grid = ticks.map((tick) => {
    const at = y(tick).toFixed(1);
    const label = `<text x="${MARGIN.left - 8}" y="${at}" dy="4" text-anchor="end">${tick.toFixed(2)}</text>`;
    return `<line x1="${MARGIN.left}" x2="${WIDTH - MARGIN.right}" y1="${at}" y2="${at}" stroke="#ddd"/>${label}`;
  });
  const below = HEIGHT - MARGIN.bottom + 18;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" font-family="sans-serif" font-size="12">`,
    `<rect width="${WIDTH}" height="${HEIGHT}" fill="white"/>`,
    `<text x="${MARGIN.left}" y="22" font-size="15">${escape(title)}</text>`,
    ...grid,
    `<text x="${MARGIN.left}" y="${below}">0</text>`,
    `<text x="${WIDTH - MARGIN.right}" y="${below}" text-anchor="end">${Math.max(values.length - 1, 0)}</text>`,
    `<text x="${MARGIN.left + width / 2}" y="${HEIGHT - 10}" text-anchor="middle">${escape(xLabel)}</text>`,
    `<text x="14" y="${MARGIN.top - 8}">${escape(yLabel)}</text>`,
    `<polyline points="${points}" fill="none" stroke="#0b62c4" stroke-width="2"/>`,
    '</svg>',
    '',
  ].join('\n');
}

function escape(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;');
}
