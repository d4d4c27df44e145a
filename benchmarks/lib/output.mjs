/** Result files: JSON beside a picture of the same name. */
import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';

export function writeJson(file, value) {
  mkdirSync(path.dirname(path.resolve(file)), { recursive: true });
  writeFileSync(file, `${JSON.stringify(value, null, 2)}\n`);
  console.log(`results: ${file}`);
}

export function writePicture(file, svg) {
  mkdirSync(path.dirname(path.resolve(file)), { recursive: true });
  writeFileSync(file, svg);
  console.log(`picture: ${file}`);
}

/** `x.json` -> `x.svg`. */
export function pictureBeside(json) {
  return json.replace(/(\.json)?$/, '.svg');
}

/** Rows of strings, the first being the header, in aligned columns. */
export function table(rows) {
  const widths = rows[0].map((_, column) => Math.max(...rows.map((row) => row[column].length)));
  const line = (row) => row.map((cell, i) => (i === 0 ? cell.padEnd(widths[i]) : cell.padStart(widths[i]))).join('  ');
  return rows.map(line).join('\n');
}
