/**
 * Regular languages over bytes by derivatives: the independent matcher that masks are compared with. It shares nothing with the
 * grammar engine: no automata, no lexers, no stacks. Equal languages built alike are one object, so derivatives are remembered.
 */

export type Language =
  | { readonly id: number; readonly kind: 'none' | 'empty' }
  | { readonly id: number; readonly kind: 'bytes'; readonly set: ReadonlySet<number> }
  | { readonly id: number; readonly kind: 'cat'; readonly first: Language; readonly rest: Language }
  | { readonly id: number; readonly kind: 'alt'; readonly parts: readonly Language[] }
  | {
      readonly id: number;
      readonly kind: 'repeat';
      readonly of: Language;
      readonly least: number;
      readonly most: number;
    };

type Made = Language extends infer L ? (L extends Language ? Omit<L, 'id'> : never) : never;

const known = new Map<string, Language>();
const derived = new Map<Language, Map<number, Language>>();

function make(key: string, made: Made): Language {
  let language = known.get(key);
  if (!language) known.set(key, (language = { id: known.size, ...made } as Language));
  return language;
}

export const NONE = make('none', { kind: 'none' });
export const EMPTY = make('empty', { kind: 'empty' });

/** Languages of one case are of no use to the next. */
export function forget(): void {
  known.clear();
  derived.clear();
  known.set('none', NONE);
  known.set('empty', EMPTY);
}

export function bytes(set: Iterable<number>): Language {
  const sorted = [...new Set(set)].sort((a, b) => a - b);
  return sorted.length === 0 ? NONE : make(`b${sorted.join()}`, { kind: 'bytes', set: new Set(sorted) });
}

export function range(low: number, high: number): Language {
  return bytes(Array.from({ length: high - low + 1 }, (_, i) => low + i));
}

export function cat(...parts: Language[]): Language {
  return parts.reduceRight(pair, EMPTY);
}

function pair(rest: Language, first: Language): Language {
  if (first === NONE || rest === NONE) return NONE;
  if (first === EMPTY) return rest;
  if (rest === EMPTY) return first;
  // To the right, so that equal sequences are one object.
  if (first.kind === 'cat') return pair(pair(rest, first.rest), first.first);
  return make(`c${first.id},${rest.id}`, { kind: 'cat', first, rest });
}

export function alt(...parts: Language[]): Language {
  const flat = new Set(parts.flatMap((part) => (part.kind === 'alt' ? [...part.parts] : part === NONE ? [] : [part])));
  const sorted = [...flat].sort((a, b) => a.id - b.id);
  if (sorted.length <= 1) return sorted[0] ?? NONE;
  return make(`a${sorted.map((part) => part.id).join()}`, { kind: 'alt', parts: sorted });
}

/** `most` may be Infinity. */
export function repeat(of: Language, least: number, most: number): Language {
  if (of === NONE) return least === 0 ? EMPTY : NONE;
  if (most === 0 || of === EMPTY) return EMPTY;
  const floor = canEnd(of) ? 0 : least;
  return make(`r${of.id},${floor},${most}`, { kind: 'repeat', of, least: floor, most });
}

export function optional(language: Language): Language {
  return alt(EMPTY, language);
}

export function word(text: string): Language {
  return cat(...Array.from(Buffer.from(text, 'utf8'), (byte) => bytes([byte])));
}

export function canEnd(language: Language): boolean {
  switch (language.kind) {
    case 'empty':
      return true;
    case 'cat':
      return canEnd(language.first) && canEnd(language.rest);
    case 'alt':
      return language.parts.some(canEnd);
    case 'repeat':
      return language.least === 0;
    default:
      return false;
  }
}

/** What may follow the byte; NONE where nothing may. */
function derive(language: Language, byte: number): Language {
  let row = derived.get(language);
  if (!row) derived.set(language, (row = new Map()));
  let found = row.get(byte);
  if (!found) row.set(byte, (found = compute(language, byte)));
  return found;
}

function compute(language: Language, byte: number): Language {
  switch (language.kind) {
    case 'bytes':
      return language.set.has(byte) ? EMPTY : NONE;
    case 'alt':
      return alt(...language.parts.map((part) => derive(part, byte)));
    case 'cat': {
      const taken = cat(derive(language.first, byte), language.rest);
      return canEnd(language.first) ? alt(taken, derive(language.rest, byte)) : taken;
    }
    case 'repeat': {
      const { of, least, most } = language;
      return cat(derive(of, byte), repeat(of, Math.max(0, least - 1), most - 1));
    }
    default:
      return NONE;
  }
}

export function after(language: Language, text: Uint8Array): Language {
  return text.reduce<Language>((at, byte) => (at === NONE ? NONE : derive(at, byte)), language);
}
