/** Random JSON values, and random spellings of them. */
import type { Random } from './random.ts';

const TEXTS = ['', 'a', 'ab', 'abc', 'b', 'é', '日é', 'a1', '0', 'x"y', 'line\n', '-'];
const NUMBERS = [0, 1, 2, 3, 5, 7, 12, -1, -12, 120, 0.5, 1.5, -0.25, 1e3];

export function randomInstance(random: Random, depth: number): unknown {
  switch (random.between(0, depth > 0 ? 7 : 4)) {
    case 0:
      return null;
    case 1:
      return random.chance(0.5);
    case 2:
      return random.pick(NUMBERS);
    case 3:
    case 4:
      return random.pick(TEXTS);
    case 5:
      return Array.from({ length: random.between(0, 4) }, () => randomInstance(random, depth - 1));
    default: {
      const names = ['a', 'b', 'ab', 'name', 'é', 'c1', 'x'].filter(() => random.chance(0.35));
      return Object.fromEntries(names.map((name) => [name, randomInstance(random, depth - 1)]));
    }
  }
}

/** JSON with random white space, order, escapes and number spellings. */
export function randomText(random: Random, value: unknown): string {
  const space = () => (random.chance(0.15) ? random.pick([' ', '\n', '\t ', '\r\n']) : '');
  const write = (one: unknown): string => {
    if (typeof one === 'string') return spellString(random, one);
    if (typeof one === 'number') return spellNumber(random, one);
    if (one === null || typeof one !== 'object') return String(one);
    const list = Array.isArray(one);
    const parts = list
      ? one.map((item) => `${space()}${write(item)}${space()}`)
      : Object.entries(one)
          .sort(() => random.next() - 0.5)
          .map(([name, item]) => `${space()}${spellString(random, name)}${space()}:${space()}${write(item)}${space()}`);
    const inner = parts.length === 0 ? space() : parts.join(',');
    return list ? `[${inner}]` : `{${inner}}`;
  };
  return `${space()}${write(value)}${space()}`;
}

function spellString(random: Random, text: string): string {
  const units = Array.from({ length: text.length }, (_, i) => text.charCodeAt(i));
  if (!random.chance(0.2)) return JSON.stringify(text);
  return `"${units.map((unit) => `\\u${unit.toString(16).padStart(4, '0')}`).join('')}"`;
}

function spellNumber(random: Random, value: number): string {
  switch (random.between(0, 4)) {
    case 0:
      return value.toExponential();
    case 1:
      return Number.isInteger(value) ? `${value}.0` : `${value}0`;
    default:
      return String(value);
  }
}
