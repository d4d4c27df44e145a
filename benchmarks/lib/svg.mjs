/** Bar charts as SVG text, without a library: groups of horizontal bars with their spread. */

const WIDTH = 860;
const LABEL = 210;
const BAR = 18;
const GAP = 14;
const COLORS = ['#2f6fde', '#9aa4b2', '#e08a2e', '#4aa564'];

function escape(text) {
  return String(text).replace(/[&<>"]/g, (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[c]);
}

function label(value) {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

/** One bar; each group has its own scale, because decode and prefill differ by orders of magnitude. */
function bar({ value, min, max, note = '' }, color, y, scale) {
  const x = (v) => LABEL + v * scale;
  const parts = [`<rect x="${LABEL}" y="${y}" width="${(value * scale).toFixed(1)}" height="${BAR}" fill="${color}"/>`];
  if (min !== undefined && max !== undefined) {
    const middle = y + BAR / 2;
    parts.push(
      `<line x1="${x(min).toFixed(1)}" x2="${x(max).toFixed(1)}" y1="${middle}" y2="${middle}" stroke="#222"/>`,
    );
  }
  const end = x(Math.max(value, max ?? 0)) + 6;
  parts.push(`<text x="${end.toFixed(1)}" y="${y + 13}">${escape(`${label(value)} ${note}`)}</text>`);
  return parts.join('');
}

/** groups: [{ name, bars: [{ series, value, min, max, note }] }]; series are coloured in order. */
export function barChart({ title, subtitle, unit, series, groups }) {
  const rows = [];
  let y = 74;
  for (const group of groups) {
    const top = Math.max(...group.bars.map(({ value, max }) => Math.max(value, max ?? 0)), Number.MIN_VALUE);
    const scale = (WIDTH - LABEL - 190) / top;
    rows.push(`<text x="${LABEL - 10}" y="${y + 13}" text-anchor="end">${escape(group.name)}</text>`);
    for (const one of group.bars) {
      rows.push(bar(one, COLORS[series.indexOf(one.series) % COLORS.length], y, scale));
      y += BAR + 3;
    }
    y += GAP;
  }
  const legend = series.map((name, i) => {
    const x = LABEL + i * 190;
    return `<rect x="${x}" y="48" width="12" height="12" fill="${COLORS[i % COLORS.length]}"/><text x="${x + 18}" y="59">${escape(name)}</text>`;
  });
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${y + 10}" viewBox="0 0 ${WIDTH} ${y + 10}" font-family="sans-serif" font-size="13">`,
    `<rect width="100%" height="100%" fill="#fff"/>`,
    `<text x="10" y="22" font-size="17" font-weight="bold">${escape(title)}</text>`,
    `<text x="10" y="40" fill="#555">${escape(`${subtitle} · ${unit}`)}</text>`,
    ...legend,
    ...rows,
    '</svg>',
    '',
  ].join('\n');
}
