/** Remembers what a trained model said, so that a trajectory may name the completion by its id. */
import type { GenerationInput } from '../../control/sessions/session.ts';
import type { ChoiceDelta } from '../../control/sessions/session.ts';
import type { ChoiceRecord } from '../../control/training/samples/sample-memory.ts';
import type { ApiDeps } from '../deps.ts';
import type { Run } from './run.ts';

/** The run with its deltas observed; as it is where nothing is to be remembered. Other log-probabilities than raw ones train nothing. */
export function recordSamples(deps: ApiDeps, id: string, input: GenerationInput, run: Run): Run {
  const { topLogprobs, logprobsMode, beamSearch } = input.sampling;
  const raw = topLogprobs !== null && logprobsMode === 'raw' && beamSearch === null;
  return raw && input.adapter !== null ? { ...run, deltas: observe(deps, id, input.tenant, run) } : run;
}

async function* observe(deps: ApiDeps, id: string, entity: string, run: Run): AsyncGenerator<ChoiceDelta> {
  const choices: (ChoiceRecord | null)[] = Array.from({ length: run.n }, () => ({ ids: [], logprobs: [] }));
  for await (const delta of run.deltas) {
    const choice = choices[delta.index];
    // What follows hidden reasoning was not sampled behind the prompt.
    if (delta.tokens > delta.tokenIds.length) choices[delta.index] = null;
    else if (choice) {
      for (const tokenId of delta.tokenIds) choice.ids.push(tokenId);
      for (const { logprob } of delta.logprobs) choice.logprobs.push(logprob);
    }
    yield delta;
  }
  deps.samples.remember(id, entity, run.generation.promptIds, choices);
}
