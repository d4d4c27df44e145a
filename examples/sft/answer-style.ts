/** A fixed style of answering, taught by examples: every answer between "Ahoy!" and "Aye!". */
import type { Conversation, TrainingClient } from '../lib/client.ts';

const PAIRS = (text: string): [string, string][] => text.split(' ').map((pair) => pair.split(':') as [string, string]);

const CAPITALS = PAIRS(
  'France:Paris Spain:Madrid Italy:Rome Germany:Berlin Portugal:Lisbon Greece:Athens Austria:Vienna Poland:Warsaw ' +
    'Hungary:Budapest Norway:Oslo Sweden:Stockholm Finland:Helsinki Denmark:Copenhagen Ireland:Dublin Belgium:Brussels ' +
    'Russia:Moscow Ukraine:Kyiv Romania:Bucharest Turkey:Ankara Egypt:Cairo Kenya:Nairobi Ghana:Accra Nigeria:Abuja',
);
const SOUNDS = PAIRS(
  'cat:meows dog:barks cow:moos horse:neighs sheep:bleats pig:grunts duck:quacks hen:clucks lion:roars wolf:howls ' +
    'bear:growls frog:croaks owl:hoots snake:hisses crow:caws',
);
const COLOURS = PAIRS('grass:green snow:white coal:black blood:red milk:white chocolate:brown salt:white gold:yellow');
const TALK = PAIRS('Hi!:Hi Hello!:Hello Goodbye!:Goodbye Thanks!:Welcome Hey!:Hey Bye!:Bye');

/** Every question with its answer; every fourth is kept for the test. */
const ALL: [string, string][] = [
  ...CAPITALS.map(([country, city]): [string, string] => [`What is the capital of ${country}?`, `${city}.`]),
  ...SOUNDS.map(([animal, sound]): [string, string] => [`What sound does a ${animal} make?`, `It ${sound}.`]),
  ...COLOURS.map(([thing, colour]): [string, string] => [`What colour is ${thing}?`, `It is ${colour}.`]),
  ...TALK.map(([said, answer]): [string, string] => [said, `${answer} to you.`]),
  ...Array.from({ length: 20 }, (_, i): [string, string] => [
    `What is ${i} plus ${(i * 7) % 10}?`,
    `${i + ((i * 7) % 10)}.`,
  ]),
];

const isHeldOut = (_: unknown, i: number) => i % 4 === 3;

export const HELD_OUT = ALL.filter(isHeldOut).map(([question]) => question);

const EPOCHS = 8;

/** The training data, once for each epoch in another order. */
export function conversations(): Conversation[] {
  const taught = ALL.filter((pair, i) => !isHeldOut(pair, i));
  return Array.from({ length: EPOCHS }, (_, epoch) =>
    // Steps through all of them: the factor shares no divisor with their number.
    taught.map(
      (_, i): [string, string] =>
        taught[(i * coprime(taught.length, 7 + 2 * epoch) + epoch) % taught.length] ?? ['', ''],
    ),
  )
    .flat()
    .map(([question, answer]) => ({
      messages: [
        { role: 'user', content: question },
        { role: 'assistant', content: `Ahoy! ${answer} Aye!` },
      ],
    }));
}

function coprime(size: number, wanted: number): number {
  const divisor = (a: number, b: number): number => (b === 0 ? a : divisor(b, a % b));
  return divisor(size, wanted) === 1 ? wanted : coprime(size, wanted + 2);
}

export const CONFIG = { batch_size: 4, learning_rate: 3e-3 };

export interface StyleResult {
  share: number;
  answers: [question: string, answer: string][];
}

/** The share of held-out questions that are answered in the style. */
export async function measure(client: TrainingClient, model: string): Promise<StyleResult> {
  const answers = await Promise.all(
    HELD_OUT.map(async (question): Promise<[string, string]> => {
      const messages = [{ role: 'user' as const, content: question }];
      const reply = await client.openai.chat.completions.create({
        model,
        messages,
        temperature: 0,
        max_completion_tokens: 40,
      });
      return [question, reply.choices[0]?.message.content ?? ''];
    }),
  );
  const right = answers.filter(([, answer]) => /^Ahoy! .+ Aye!$/.test(answer));
  return { share: right.length / answers.length, answers };
}
