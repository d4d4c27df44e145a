/** What a job is sent, the same for the same key: a few packed rows, so a few steps. */
import { seededRandom } from '../../../dist/control/training/random.js';

const ROW = 16;

export function bodyOf(modelId, key) {
  const random = seededRandom(`body ${key}`);
  const whole = (below) => Math.floor(random() * below);
  const trajectory = (prompt) => {
    const ids = Array.from({ length: 3 + whole(5) }, () => whole(512));
    return {
      messages_and_choices: [
        {
          finish_reason: 'stop',
          index: 0,
          message: { role: 'assistant', content: 'x' },
          prompt_token_ids: prompt,
          token_ids: ids,
          logprobs: { content: ids.map((id) => ({ token: `token_id:${id}`, logprob: -0.5 - random() })) },
        },
      ],
      reward: whole(5),
    };
  };
  const groups = Array.from({ length: 1 + whole(3) }, () => {
    const prompt = Array.from({ length: 2 + whole(4) }, () => whole(512));
    return { trajectories: Array.from({ length: 2 + whole(2) }, () => trajectory(prompt)) };
  });
  const config = { packed_sequence_length: ROW, logprob_calculation_chunk_size: ROW, learning_rate: 0.01 };
  return { model_id: modelId, trajectory_groups: groups, experimental_config: config };
}
