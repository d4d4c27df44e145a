/** Remembers what a trained model said, so that a trajectory may name the completion by its id. */
import type { GenerationInput } from '../../control/sessions/session.ts';
import type { ChoiceDelta } from '../../control/sessions/session.ts';
import type { ChoiceRecord } from '../../control/training/samples/sample-memory.ts';
import type { ApiDeps } from '../deps.ts';
import type { Run } from './run.ts';

/** The run with its deltas observed; as it is where nothing is to be remembered. */
export function recordSamples(deps: ApiDeps, id: string, input: GenerationInput, run: Run): Run {
  return { ...run, deltas: recordRuns(deps, id, input, [run], run.deltas) };
}

/** The same for runs that have their sampling in common, whose choices `deltas` counts from one to the next. */
export function recordRuns(
  deps: ApiDeps,
  id: string,
  { sampling, adapter, tenant }: GenerationInput,
  runs: readonly Run[],
  deltas: AsyncIterable<ChoiceDelta>,
): AsyncIterable<ChoiceDelta> {
  const { topLogprobs, logprobsMode, beamSearch } = sampling;
  // Other log-probabilities than raw ones train nothing.
  const raw = topLogprobs !== null && logprobsMode === 'raw' && beamSearch === null;
  if (!raw || adapter === null) return deltas;
  const remember = (choices: readonly (ChoiceRecord | null)[]) =>
    deps.samples.remember(
      id,
      tenant,
      runs.map(({ generation }) => generation.promptIds),
      choices,
    );
  return observe(
    runs.reduce((sum, { n }) => sum + n, 0),
    deltas,
    remember,
  );
}

async function* observe(
  n: number,
  deltas: AsyncIterable<ChoiceDelta>,
  remember: (choices: readonly (ChoiceRecord | null)[]) => void,
): AsyncGenerator<ChoiceDelta> {
  const choices: (ChoiceRecord | null)[] = Array.from({ length: n }, () => ({ ids: [], logprobs: [] }));
  for await (const delta of deltas) {
    const choice = choices[delta.index];
    // What follows hidden reasoning was not sampled behind the prompt.
    if (delta.tokens > delta.tokenIds.length) choices[delta.index] = null;
    else if (choice) {
      for (const tokenId of delta.tokenIds) choice.ids.push(tokenId);
      for (const { logprob } of delta.logprobs) choice.logprobs.push(logprob);
    }
    yield delta;
  }
  remember(choices);
}
