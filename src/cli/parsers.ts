/** Readers for flag and variable values. Each throws a sentence that says what would be right. */
import { InvalidArgumentError } from 'commander';
import type { PeerAddress } from '../control/transfer/transfer.ts';
import { isPlainObject } from '../schemas/plain-object.ts';

export type Parser<T> = ((text: string) => T) & { choices?: readonly string[] };

const MEBIBYTE = 2 ** 20;
const UNITS: Readonly<Record<string, number>> = { '': 1, K: 2 ** 10, M: MEBIBYTE, G: 2 ** 30, T: 2 ** 40 };

export function integer(minimum: number, maximum: number): Parser<number> {
  return (text) => {
    const value = /^-?\d+$/.test(text.trim()) ? Number(text) : NaN;
    if (value >= minimum && value <= maximum) return value;
    throw new InvalidArgumentError(`Give a whole number from ${minimum} to ${maximum}.`);
  };
}

export function fraction(minimum: number, maximum: number): Parser<number> {
  return (text) => {
    const value = /^\d*\.?\d+$/.test(text.trim()) ? Number(text) : NaN;
    if (value >= minimum && value <= maximum) return value;
    throw new InvalidArgumentError(`Give a number from ${minimum} to ${maximum}.`);
  };
}

/** `4096`, `512K`, `64M`, `4G`, with an optional `B` or `iB` behind; powers of 1024. */
export function bytes(minimum: number, maximum = Number.MAX_SAFE_INTEGER): Parser<number> {
  return (text) => {
    const match = /^(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?$/i.exec(text.trim());
    const value = match ? Math.floor(Number(match[1]) * (UNITS[(match[2] ?? '').toUpperCase()] ?? NaN)) : NaN;
    if (value >= minimum && value <= maximum) return value;
    const sizes = maximum < Number.MAX_SAFE_INTEGER ? `, ${maximum / MEBIBYTE}M at most` : ', such as 512M or 4G';
    throw new InvalidArgumentError(`Give a size of at least ${minimum} bytes${sizes}.`);
  };
}

export function oneOf<const T extends string>(...values: T[]): Parser<T> & { choices: readonly T[] } {
  const parse = (text: string) => {
    const found = values.find((value) => value === text);
    if (found !== undefined) return found;
    throw new InvalidArgumentError(`Give one of: ${values.join(', ')}.`);
  };
  return Object.assign(parse, { choices: values });
}

export function text(): Parser<string> {
  return (value) => {
    if (value.trim() === '') throw new InvalidArgumentError('It must not be empty.');
    // A carriage return, most likely, of a file with line ends of Windows.
    if (/\p{Cc}/u.test(value)) throw new InvalidArgumentError('It must not have control characters.');
    return value;
  };
}

/** Keys travel in a header: no white space. */
export function secret(): Parser<string> {
  return (value) => {
    if (/^[\x21-\x7e]{1,1024}$/.test(value)) return value;
    throw new InvalidArgumentError('Give 1 to 1024 printable ASCII characters without spaces.');
  };
}

export function list(): Parser<string[]> {
  return (value) => {
    const items = value.split(',').map((item) => item.trim());
    if (items.every((item) => item !== '')) return items;
    throw new InvalidArgumentError('Give a comma-separated list without empty names.');
  };
}

/** As browsers send them, so that they are found: lower case, without a default port or a path; `null` for pages out of files. */
export function origins(): Parser<string[]> {
  return (value) =>
    list()(value).map((item) => {
      if (item === '*' || item === 'null' || /^(?!https?:)[a-z][a-z0-9+.-]*:\/\/[^/\s]+$/.test(item)) return item;
      const url = /^https?:\/\/[^/?#@]+\/?$/i.test(item) && URL.canParse(item) ? new URL(item) : null;
      if (url !== null) return url.origin;
      throw new InvalidArgumentError(
        'Give origins such as https://chat.example.org, or *: a scheme and a host, no path.',
      );
    });
}

/** As they stand in a URL that was read. */
export function hosts(): Parser<string[]> {
  return (value) =>
    list()(value).map((item) => {
      if (item === '*') return item;
      if (/^([^/:?#@\s]+|\[[\da-f:.]+\])$/i.test(item) && URL.canParse(`http://${item}`))
        return new URL(`http://${item}`).hostname;
      throw new InvalidArgumentError('Give names of hosts such as data.example.org, or *: no scheme, no port.');
    });
}

/** `host:port`, comma-separated; an IPv6 address in brackets. */
export function addresses(): Parser<PeerAddress[]> {
  return (value) =>
    value.split(',').map((item) => {
      const [, bracketed, plain, port = ''] = /^(?:\[([^\]]+)\]|([^:\s]+)):(\d{1,5})$/.exec(item.trim()) ?? [];
      const host = bracketed ?? plain;
      const number = Number(port);
      if (host !== undefined && number >= 1 && number <= 65_535) return { host, port: number };
      throw new InvalidArgumentError('Give host:port, several with commas between them.');
    });
}

/** Text of a JSON object; `example` is one. `parse`: JSON.parse, or what keeps more of its numbers. */
export function jsonObject(
  example: string,
  parse: (text: string) => unknown = JSON.parse,
): Parser<Record<string, unknown>> {
  return (value) => {
    try {
      const parsed = parse(value);
      if (isPlainObject(parsed)) return parsed;
    } catch {
      // The sentence below says what would be right.
    }
    throw new InvalidArgumentError(`Give a JSON object, such as ${example}.`);
  };
}

/** `name=path`, several with commas between; the name ends at the first `=`. */
export function namedPaths(): Parser<{ name: string; path: string }[]> {
  return (value) => {
    const items = value.split(',').map((item) => /^([^=]+)=(.+)$/.exec(item.trim()));
    if (items.every((item) => item !== null))
      return items.map((item) => ({ name: item[1] ?? '', path: item[2] ?? '' }));
    throw new InvalidArgumentError('Give name=folder.');
  };
}

export function boolean(): Parser<boolean> {
  return (value) => {
    if (['true', '1', 'yes', 'on'].includes(value.toLowerCase())) return true;
    if (['false', '0', 'no', 'off'].includes(value.toLowerCase())) return false;
    throw new InvalidArgumentError('Give true or false.');
  };
}
