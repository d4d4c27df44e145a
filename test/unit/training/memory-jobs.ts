/** Jobs for the stores in memory. */
import type { RlJob, SftJob } from '../../../src/control/training/ports.ts';
import type { HistoryElement, TrajectoryGroup } from '../../../src/control/training/trajectories.ts';
import { starterChat } from './chat-encoder.ts';

const chat = await starterChat();
export const user = (content: string): HistoryElement => ({ role: 'user', content });

export function choice(text: string): HistoryElement {
  const content = chat.ids(text).map((id) => ({ token: `token_id:${id}`, logprob: -1.5 }));
  return { finish_reason: 'stop', index: 0, message: { role: 'assistant', content: text }, logprobs: { content } };
}

export function group(question: string, rewards: number[], replies = ['yes', 'no', 'maybe', 'red']): TrajectoryGroup {
  return {
    trajectories: rewards.map((reward, i) => ({
      messages_and_choices: [user(question), choice(`${replies[i % replies.length]}<|im_end|>`)],
      reward,
      initial_policy_version: 0,
    })),
  };
}

/** Three packed rows of one group each. */
export const GROUPS = [
  group('Which one?', [1, 0, 0.6]),
  group('And now?', [0, 1]),
  group('Say it.', [0.2, 0.5, 0.9, 0.1]),
];
export const THREE_ROWS = { packed_sequence_length: 32, logprob_calculation_chunk_size: 32, learning_rate: 0.01 };

export const rl = (config: RlJob['config'] = THREE_ROWS, id = 'job'): RlJob => ({
  kind: 'rl',
  id,
  modelId: 'm',
  config,
});
export const sft = (config: SftJob['config'] = null, id = 'job'): SftJob => ({ kind: 'sft', id, modelId: 'm', config });
