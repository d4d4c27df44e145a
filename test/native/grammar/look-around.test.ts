/**
 * Random regular expressions with look-around, word boundaries and anchors in any place beside JavaScript's own, with the `u` flag; and expressions
 * that schemas are made with.
 */
import { beforeAll, expect, it } from 'vitest';
import { loadNative } from '../../../src/control/engine/native.ts';
import type { NativeGrammarSource, NativeVocabulary } from '../../../src/control/engine/native-grammar.ts';
import { compileGrammar } from '../../../src/control/grammar/compile.ts';
import { compile, END, generateOptions, makeVocabulary, Masks, reads } from './drive.ts';
import { Random } from './random.ts';

const CASES = Number(process.env['TANDEM_FUZZ_CASES'] ?? 150);
const SEED = process.env['TANDEM_FUZZ_SEED'] ?? '1';
const FIRST_SEED = SEED === 'time' ? Date.now() % 1_000_000_000 : Number(SEED);
const CHARACTERS = ['a', 'b', '-', 'é'];
/** As ids: the byte and one. */
const tokens = [Buffer.alloc(0), ...Array.from({ length: 256 }, (_, byte) => Buffer.from([byte]))];
const masks = new Masks(tokens.length);
let vocabulary: NativeVocabulary;

beforeAll(async () => {
  vocabulary = await makeVocabulary(tokens, [END]);
});

/** All texts of up to two characters, and some longer ones. */
function textsOf(random: Random): string[] {
  const two = ['', ...CHARACTERS, ...CHARACTERS.flatMap((first) => CHARACTERS.map((second) => first + second))];
  const longer = Array.from({ length: 25 }, () =>
    Array.from({ length: random.between(3, 6) }, () => random.pick(CHARACTERS)).join(''),
  );
  return [...two, ...longer];
}

/** What may stand in an expression: within look-behind nothing that looks on, within look-ahead rarely what looks back. */
interface Inside {
  depth: number;
  ahead: boolean;
  behind: boolean;
}

function randomPattern(random: Random, inside: Inside): string {
  const items = Array.from({ length: random.between(1, 3) }, () => randomItem(random, inside)).join('');
  return random.chance(0.2) ? `${items}|${randomItem(random, inside)}` : items;
}

function randomItem(random: Random, inside: Inside): string {
  const { depth, ahead, behind } = inside;
  const kind = random.between(0, depth === 0 ? 3 : 8);
  const looksBack = !behind && (!ahead || random.chance(0.1));
  if (kind <= 2)
    return random.pick(['a', 'b', '-', 'é', '.', '\\w', '[ab]', '[^a]']) + random.pick(['', '', '*', '?', '{1,2}']);
  if (kind === 3) return random.pick(['^', ...(behind ? [] : ['$']), ...(looksBack ? ['\\b', '\\B'] : [])]);
  const deeper = { ...inside, depth: depth - 1 };
  if (kind === 4 || behind) return `(?:${randomPattern(random, deeper)})${random.pick(['', '*', '+', '?', '{2}'])}`;
  const sign = random.pick(['=', '!']);
  return looksBack && random.chance(0.3)
    ? `(?<${sign}${randomPattern(random, { ...deeper, behind: true })})`
    : `(?${sign}${randomPattern(random, { ...deeper, ahead: true })})`;
}

/** Whether the expression could be decided. */
async function judge(source: NativeGrammarSource, texts: string[], written: (text: string) => string, judged: RegExp) {
  const grammar = await compile(source, { ...generateOptions, anySpace: false });
  if (grammar === null) return false;
  for (const text of texts) {
    const ids = Array.from(Buffer.from(written(text)), (byte) => byte + 1);
    const read = !grammar.empty && reads(grammar.createMatcher(vocabulary), masks, ids);
    expect(read, `${judged} ${JSON.stringify(text)}`).toBe(judged.test(text));
  }
  grammar.release();
  return true;
}

it('random expressions: a text is read where JavaScript matches it', async () => {
  let decided = 0;
  for (let seed = FIRST_SEED; seed < FIRST_SEED + CASES; seed++) {
    const random = new Random(seed);
    const pattern = randomPattern(random, { depth: 3, ahead: false, behind: false });
    const texts = textsOf(random);
    const whole = new RegExp(`^(?:${pattern})$`, 'u');
    decided += Number(await judge({ kind: 'regex', text: pattern }, texts, (text) => text, whole));
    const schema = JSON.stringify({ type: 'string', pattern });
    const search = new RegExp(pattern, 'u');
    decided += Number(
      await judge({ kind: 'json_schema', text: schema }, texts, (text) => JSON.stringify(text), search),
    );
  }
  expect(decided).toBeGreaterThan(CASES);
});

it.each([
  [
    'an address, as zod writes it',
    "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$",
    ['a.b@c.de', '.a@c.de', 'a..b@c.de', 'a@c', 'a.@c.de'],
  ],
  [
    'a duration, as zod writes it',
    '^P(?:(\\d+W)|(?!.*W)(?=\\d|T\\d)(\\d+Y)?(\\d+M)?(\\d+D)?(T(?=\\d)(\\d+H)?(\\d+M)?(\\d+([.,]\\d+)?S)?)?)$',
    ['P1W', 'P', 'PT', 'P1YT', 'P1DT2H', 'PT1.5S', 'P1W1D'],
  ],
  [
    'a host, as zod writes it',
    '^(?=.{1,253}\\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\\.?$',
    ['a.b', 'a-.b', `${'a.'.repeat(126)}a`, `${'a.'.repeat(126)}a.`, `${'a.'.repeat(127)}a`, 'a'.repeat(64)],
  ],
  [
    'a decimal number, as pydantic writes it',
    '^(?!^[-+.]*$)[+-]?0*(?:\\d{0,3}|(?=[\\d.]{1,6}0*$)\\d{0,3}\\.\\d{0,2}0*$)',
    ['', '-', '+.', '1', '-1.25', '1234.5', '0001.2500', '1.'],
  ],
  [
    'emoji, as zod writes them',
    '^(?=[\\s\\S]*[\\p{Extended_Pictographic}\\p{Regional_Indicator}\\u20E3])[\\p{Extended_Pictographic}\\p{Emoji_Component}]+$',
    ['😀', '👍🏽', '👨‍👩‍👧', '🇩🇪', '1️⃣', '1', 'a', '', '😀a', '\u200d'],
  ],
  ['not blank', '^(?!\\s*$).+', ['', ' ', '\u2003', ' a', 'é']],
  [
    'a password',
    '^(?=.*[a-z])(?=.*[A-Z])(?=.*\\d)[A-Za-z\\d@$!%*?&]{8,}$',
    ['aaaaaaaA1', 'aaaaaaaaa', 'AAAAAAA1', 'aA1aA1a', 'aA1aA1aA'],
  ],
  ['all but a word', '^(?!.*\\bfoo\\b).*$', ['', 'food', 'a foo', 'foo-', 'xfoo foox', 'foo']],
  ['up to a mark', '^<!--(?:(?!-->)[^])*-->$', ['<!---->', '<!--a\n-->', '<!-- --> -->', '<!--->']],
  ['what is not at the end', '^(?!-)[a-z-]{1,5}(?<!-)$', ['a', '-a', 'a-', 'a-b', 'abcdef']],
  ['the place before and behind', '(?<=é)b(?=\\d)', ['éb1', 'b1', 'éb', 'aéb12', 'bé']],
])('%s', async (_name, pattern, texts) => {
  const schema = JSON.stringify({ type: 'string', pattern });
  const search = new RegExp(pattern, 'u');
  expect(texts.map((text) => search.test(text))).toEqual(expect.arrayContaining([true, false]));
  expect(await judge({ kind: 'json_schema', text: schema }, texts, (text) => JSON.stringify(text), search)).toBe(true);
});

it.each([
  ['look-behind at what follows', '(?<=a$)b'],
  ['look-behind within a look-ahead', 'a(?=.*(?<=b)c)'],
])('%s is refused by name', async (what, pattern) => {
  const source = { kind: 'json_schema' as const, text: JSON.stringify({ type: 'string', pattern }) };
  await expect(compileGrammar(loadNative(), source, generateOptions)).rejects.toThrow(`pattern: ${what}`);
});

it.each([
  ['too many places at which it looks', `^${'(?!x)'.repeat(251)}a`],
  ['sets of promises without end', '(?=.*a.{18}$)(?!.*b.{17}$)(?=.*c.{16}$).*'],
])('%s are a bound', async (_name, pattern) => {
  const source = { kind: 'json_schema' as const, text: JSON.stringify({ type: 'string', pattern }) };
  await expect(compileGrammar(loadNative(), source, generateOptions)).rejects.toMatchObject({ kind: 'bound' });
});

it('terminals of grammars and white space look at no text but their own', async () => {
  const grammar = { kind: 'grammar' as const, text: 'start: /a(?=b)/ "b"' };
  await expect(compileGrammar(loadNative(), grammar, generateOptions)).rejects.toThrow('look-around');
  const schema = { kind: 'json_schema' as const, text: '{}' };
  const options = { ...generateOptions, space: '\\b ?' };
  await expect(compileGrammar(loadNative(), schema, options)).rejects.toThrow('look-around');
});
