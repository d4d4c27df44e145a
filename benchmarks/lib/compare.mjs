/** A result against a baseline of the same machine, case by case. */

/** What is compared: shares and ratios first, which a change of the machine's clock moves least. */
const MEASURES = ['ratio', 'limit_share', 'median'];

function measures(one) {
  return { ratio: one.ratio, limit_share: one.limit_share, median: one.tandem.median };
}

/** So many per cent more than without something; may be near 0 or below it. */
function isCost(unit) {
  return unit.startsWith('%');
}

/** Times and costs are better when they are lower, everything else when it is higher. */
function lowerIsBetter(unit) {
  return isCost(unit) || /^(ms|s|us|steps)\b/.test(unit);
}

/** How much better (above 1) or worse (below 1) `now` is than `before`. */
function gain(now, before, unit, measure) {
  if (measure === 'median' && isCost(unit)) return (100 + before) / (100 + now);
  return measure === 'median' && lowerIsBetter(unit) ? before / now : now / before;
}

/**
 * One entry per case that both files have: { name, verdict, gains }. `worse`: each measure that both have lost more than `tolerance`.
 * `unclear`: so has the median, but the best round of the result lies within it, or another measure does.
 */
export function compareCases(result, baseline, tolerance) {
  const before = new Map(baseline.cases.map((one) => [one.name, one]));
  return result.cases.flatMap((one) => {
    const old = before.get(one.name);
    if (!old) return [];
    const [now, then] = [measures(one), measures(old)];
    const shared = MEASURES.filter((name) => Number.isFinite(now[name]) && Number.isFinite(then[name]));
    const gains = Object.fromEntries(shared.map((name) => [name, gain(now[name], then[name], one.unit, name)]));
    const best = lowerIsBetter(one.unit) ? one.tandem.min : one.tandem.max;
    const bestGain = gain(best, then.median, one.unit, 'median');
    return [{ name: one.name, verdict: verdictOf(Object.values(gains), bestGain, tolerance), gains }];
  });
}

function verdictOf(gains, bestGain, tolerance) {
  const lost = gains.filter((value) => value < 1 - tolerance);
  if (lost.length === 0) return gains.every((value) => value > 1 + tolerance) ? 'better' : 'same';
  return lost.length === gains.length && bestGain < 1 - tolerance ? 'worse' : 'unclear';
}

/** Results of another CPU, core count or instruction set, of other forced kernels, another shape, or another GPU say nothing about each other. */
export function sameMachine(a, b) {
  const facts = ({ gpu, cpu, cores, flags, forced = '', shape }) =>
    JSON.stringify(gpu ? [gpu] : [cpu, cores, flags, forced, shape]);
  return facts(a) === facts(b);
}
