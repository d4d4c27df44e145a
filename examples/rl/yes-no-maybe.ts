/** The smallest task there is: of yes, no and maybe, learn to say maybe. */
import type { TrainingClient } from '../lib/client.ts';
import type { Play } from './loop.ts';

export const QUESTIONS = [
  'Yes, no or maybe?',
  'Respond with yes, no or maybe.',
  'Answer with one of: yes, no, maybe',
  'Say maybe, no or yes.',
  'Choose yes, maybe or no.',
  'Say yes, no or maybe.',
  'Pick one of yes, no and maybe.',
  'No, maybe or yes?',
];

const REWARDS = new Map([
  ['no', 0],
  ['yes', 0.5],
  ['maybe', 1],
]);

/** What a model that says each of the three as often would earn. */
export const CHANCE = 0.5;

const ROLLOUTS = 8;

/** Adam moves every weight by about this much: a small model needs much. */
export const CONFIG = { learning_rate: 1e-3 };

export const scenarios = (): Play[] =>
  QUESTIONS.map((question) => async (client: TrainingClient, model: string) => {
    const message = { role: 'user' as const, content: question };
    const sampling = { max_completion_tokens: 8, n: ROLLOUTS };
    const { choices } = await client.openai.chat.completions.create({ model, messages: [message], ...sampling });
    return choices.map((choice) => ({
      messages_and_choices: [message, choice],
      reward: REWARDS.get(choice.message.content ?? '') ?? 0,
    }));
  });
