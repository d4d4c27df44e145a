/** Teaches a style of answering and shows how many held-out questions are answered in it. See README.md. */
import { writeFileSync } from 'node:fs';
import { runExample, type ExampleOptions } from '../lib/arguments.ts';
import { drawCurve } from '../lib/curve.ts';
import { CONFIG, conversations, measure } from './answer-style.ts';

async function main({ client, project }: ExampleOptions): Promise<void> {
  const model = await client.register(project, `answer-style-${Date.now()}`);
  const before = await measure(client, client.inferenceName(model, 0));
  console.log(`before: ${(100 * before.share).toFixed(0)} % of held-out questions in the style`);
  const steps = await client.trainSft(model, conversations(), CONFIG);
  const values = steps.map((step) => Number(step['loss']));
  console.log(
    `${values.length} steps, loss ${values[0]?.toFixed(3)} to ${values.at(-1)?.toFixed(3)}; curve in answer-style.svg`,
  );
  const to = Math.max(...values);
  writeFileSync(
    'answer-style.svg',
    drawCurve({ title: 'Learning a style', xLabel: 'batch', yLabel: 'loss', values, from: 0, to }),
  );
  const after = await measure(client, client.inferenceName(model));
  console.log(`after: ${(100 * after.share).toFixed(0)} %, for example:`);
  for (const [question, answer] of after.answers.slice(0, 5)) console.log(`  ${question} -> ${answer}`);
}

process.exitCode = await runExample('example:sft', 0, main);
