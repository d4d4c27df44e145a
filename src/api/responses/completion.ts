import { codePoints } from '../../control/sessions/code-points.ts';
import type { CompletionChoice, CompletionLogprobs, CompletionResponse } from '../../schemas/completion-response.ts';
import type { WholeChoice } from '../generation/collect.ts';
import type { Run } from '../generation/run.ts';
import type { Envelope } from './envelope.ts';
import { kvTransferHandle } from './kv-transfer.ts';
import { completionColumns, completionLogprobs } from './logprobs.ts';
import { madeFrom, MadeList } from './pieces.ts';
import { joinLogprobs, type PromptPart } from './prompt-part.ts';
import { totalUsage } from './usage.ts';

/** `prompts`: parallel to `runs`. */
export function completionResponse(
  envelope: Envelope,
  runs: Run[],
  prompts: PromptPart[],
  choices: WholeChoice[],
): CompletionResponse {
  const owners = ownersOf(runs);
  const shown = choices.map((choice, index) => {
    const owner = owners[index] ?? 0;
    return completionChoice(envelope, index, choice, prompts[owner], runs[owner]);
  });
  return frame(envelope, runs, shown);
}

/** The same answer for `answerPieces`. The choices are emptied on the way. */
export function largeCompletionResponse(
  envelope: Envelope,
  runs: Run[],
  prompts: PromptPart[],
  choices: WholeChoice[],
): object {
  return frame(envelope, runs, new MadeList(largeChoices(envelope, runs, prompts, choices), true));
}

function* largeChoices(
  envelope: Envelope,
  runs: Run[],
  prompts: PromptPart[],
  choices: WholeChoice[],
): Generator<object[]> {
  const owners = ownersOf(runs);
  for (const [index, choice] of choices.entries()) {
    const owner = owners[index] ?? 0;
    const prompt = prompts[owner];
    const shown = plainChoice(envelope, index, choice, prompt, runs[owner]);
    const logprobs = envelope.logprobs ? largeLogprobs(envelope, prompt, choice) : null;
    yield [{ ...shown, logprobs, prompt_logprobs: prompt?.largeScores() ?? null }];
    choice.text = '';
    choice.tokenIds = [];
    choice.logprobs = [];
  }
}

/** The prompt's tokens, then the choice's. */
function largeLogprobs(envelope: Envelope, prompt: PromptPart | undefined, choice: WholeChoice): object {
  const { tokensAsIds } = envelope.output;
  const before = prompt?.tokens() ?? [];
  const first = completionColumns(tokensAsIds, 0);
  const rest = completionColumns(tokensAsIds, codePoints(prompt?.text ?? ''));
  const column = (name: keyof CompletionLogprobs): MadeList =>
    new MadeList(joined(madeFrom(before, first[name]), madeFrom(choice.logprobs, rest[name])));
  return {
    text_offset: column('text_offset'),
    token_logprobs: column('token_logprobs'),
    tokens: column('tokens'),
    top_logprobs: column('top_logprobs'),
  };
}

function* joined(...lists: MadeList[]): Generator<readonly unknown[]> {
  for (const { parts } of lists) yield* parts;
}

/** Which run each choice is of. */
function ownersOf(runs: Run[]): number[] {
  return runs.flatMap((run, index) => Array.from({ length: run.n }, () => index));
}

function frame<Choices>(
  envelope: Envelope,
  runs: Run[],
  choices: Choices,
): Omit<CompletionResponse, 'choices'> & { choices: Choices } {
  return {
    id: envelope.id,
    object: 'text_completion',
    created: envelope.created,
    model: envelope.model,
    choices,
    usage: totalUsage(runs.map((run) => run.generation)),
    service_tier: envelope.serviceTier,
    system_fingerprint: envelope.systemFingerprint,
    kv_transfer_params: kvTransferHandle(runs[0]?.generation.heldBlocks() ?? null, envelope.id),
  };
}

function completionChoice(
  envelope: Envelope,
  index: number,
  choice: WholeChoice,
  prompt: PromptPart | undefined,
  run: Run | undefined,
): CompletionChoice {
  const { tokensAsIds } = envelope.output;
  const output = () => completionLogprobs(choice.logprobs, tokensAsIds, codePoints(prompt?.text ?? ''));
  return {
    ...plainChoice(envelope, index, choice, prompt, run),
    logprobs: envelope.logprobs ? joinLogprobs(prompt?.logprobs() ?? null, output()) : null,
    prompt_logprobs: prompt?.scores() ?? null,
  };
}

/** Without log-probabilities, whose places are kept. */
function plainChoice(
  { output }: Envelope,
  index: number,
  choice: WholeChoice,
  prompt: PromptPart | undefined,
  run: Run | undefined,
): CompletionChoice {
  return {
    index,
    text: (prompt?.text ?? '') + choice.text,
    logprobs: null,
    finish_reason: choice.finish,
    stop_reason: choice.stopReason,
    token_ids: output.returnTokenIds ? choice.tokenIds : null,
    prompt_logprobs: null,
    prompt_token_ids: output.returnTokenIds && run ? [...run.generation.promptIds] : null,
  };
}
