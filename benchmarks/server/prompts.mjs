/** Prompts of a wanted length in the server's own tokens, whatever its tokenizer is. */
import { randomFrom } from '../lib/stats.mjs';

const WORDS =
  'river stone light paper green window seven garden morning table cloud number house letter winter road'.split(' ');

function text(count, random) {
  const words = Array.from({ length: count }, () => WORDS[Math.floor(random() * WORDS.length)]);
  return words.join(' ');
}

/** Reads a length: `256`, or a range `100-1024`. */
export function parseLength(name, value) {
  const match = /^(\d+)(?:-(\d+))?$/.exec(value);
  const [low, high] = [Number(match?.[1]), Number(match?.[2] ?? match?.[1])];
  if (!match || low < 1 || high < low)
    throw new Error(`--${name} must be a number of tokens or a range such as 100-1024.`);
  return { low, high };
}

export function drawLength({ low, high }, random) {
  return low + Math.floor(random() * (high - low + 1));
}

/** Finds by two small requests how many tokens the template adds and how many characters a token has. */
export async function promptMaker(client) {
  const random = randomFrom(1);
  const [short, long] = [text(4, random), text(104, random)];
  const [few, many] = [await client.promptTokens(short), await client.promptTokens(long)];
  const charactersPerToken = (long.length - short.length) / (many - few);
  const overhead = Math.max(0, Math.round(few - short.length / charactersPerToken));
  return (tokens, seed) => {
    const characters = Math.max(1, Math.round((tokens - overhead) * charactersPerToken));
    return text(Math.ceil(characters / 3), randomFrom(seed)).slice(0, characters);
  };
}
