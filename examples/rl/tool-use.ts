/** Call the tool that fits with the right argument and say what it found; call none where none fits. */
import type OpenAI from 'openai';
import type { HistoryElement, TrainingClient, Trajectory } from '../lib/client.ts';
import type { Play } from './loop.ts';

const TOOLS: OpenAI.ChatCompletionTool[] = [
  {
    type: 'function',
    function: {
      name: 'find_price',
      description: 'Find the price.',
      parameters: { type: 'object', properties: { item: { type: 'string' } }, required: ['item'] },
    },
  },
  {
    type: 'function',
    function: {
      name: 'open_door',
      description: 'Open the door.',
      parameters: { type: 'object', properties: { code: { type: 'string' } }, required: ['code'] },
    },
  },
];

const ITEMS = [
  'lamp',
  'ticket',
  'robot',
  'camera',
  'table',
  'book',
  'printer',
  'kettle',
  'bottle',
  'chair',
  'clock',
  'bag',
];
/** From what the starter model does at once to what it nearly never does. */
const WORDINGS = ['Find the price, item {}.', 'Find the price of the {}.', 'I need the price of a {}.'];
/** No tool can do these. */
const OTHERS = ['Paint the {}.', 'Can you clean the {}?'];

const GROUPS = 8;
const ROLLOUTS = 8;

export const CONFIG = { learning_rate: 5e-4 };

/** Items and prices change from step to step; every fourth request fits no tool. */
export function scenarios(step: number): Play[] {
  return Array.from({ length: GROUPS }, (_, i) => {
    const at = step * GROUPS + i;
    const item = ITEMS[at % ITEMS.length] ?? '';
    const wording = [...WORDINGS, OTHERS[step % OTHERS.length] ?? ''][i % (WORDINGS.length + 1)] ?? '';
    const fits = WORDINGS.includes(wording);
    const question = wording.replace('{}', item);
    const price = fits ? 10 + ((at * 37) % 89) : null;
    return async (client: TrainingClient, model: string) =>
      Promise.all(Array.from({ length: ROLLOUTS }, () => play(client, model, { question, item, price })));
  });
}

interface Request {
  question: string;
  item: string;
  /** null: no tool fits. */
  price: number | null;
}

/** Half of the reward is for the call, half for the answer; all of it for no call where none fits. */
async function play(client: TrainingClient, model: string, { question, item, price }: Request): Promise<Trajectory> {
  const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: question }];
  const history: HistoryElement[] = [...messages];
  const trajectory = (reward: number): Trajectory => ({ messages_and_choices: history, tools: TOOLS, reward });
  const first = await sample(client, model, messages);
  history.push(first);
  const calls = first.message.tool_calls ?? [];
  if (price === null) return trajectory(calls.length === 0 ? 1 : 0);
  const [call] = calls;
  if (calls.length !== 1 || call?.type !== 'function' || call.function.name !== 'find_price') return trajectory(0);
  if (argumentOf(call.function.arguments) !== item) return trajectory(0);
  const result = { role: 'tool' as const, tool_call_id: call.id, content: JSON.stringify({ price }) };
  const second = await sample(client, model, [...messages, first.message, result]);
  history.push(result, second);
  return trajectory(second.message.content?.includes(String(price)) === true ? 1 : 0.5);
}

async function sample(
  client: TrainingClient,
  model: string,
  messages: OpenAI.ChatCompletionMessageParam[],
): Promise<OpenAI.ChatCompletion.Choice> {
  const sampling = { max_completion_tokens: 48 };
  const { choices } = await client.openai.chat.completions.create({ model, messages, tools: TOOLS, ...sampling });
  const [choice] = choices;
  if (!choice) throw new Error('The server gave no choice.');
  return choice;
}

function argumentOf(json: string): unknown {
  try {
    return (JSON.parse(json) as { item?: unknown } | null)?.item;
  } catch {
    return null;
  }
}
