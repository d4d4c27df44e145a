/** Trains on both tasks and writes the reward curves beside the command. See README.md. */
import { writeFileSync } from 'node:fs';
import { runExample, type ExampleOptions } from '../lib/arguments.ts';
import { drawCurve } from '../lib/curve.ts';
import { learn, type LoopOptions } from './loop.ts';
import * as toolUse from './tool-use.ts';
import * as yesNoMaybe from './yes-no-maybe.ts';

type Task = Pick<LoopOptions, 'scenarios' | 'config'>;

async function run({ client, project, steps }: ExampleOptions, name: string, title: string, task: Task): Promise<void> {
  // A new model for each run: what an earlier run learned would hide the beginning.
  const model = await client.register(project, `${name}-${Date.now()}`);
  const report = (step: number, reward: number) =>
    console.log(`${name} step ${step}: mean reward ${reward.toFixed(3)}`);
  const values = await learn(client, model, { ...task, steps, target: 0.97, report });
  const file = `${name}.svg`;
  writeFileSync(file, drawCurve({ title, xLabel: 'step', yLabel: 'mean reward', values, from: 0, to: 1 }));
  console.log(`${name}: ${values.length} steps, the last at ${values.at(-1)?.toFixed(3)}; curve in ${file}`);
}

process.exitCode = await runExample('example:rl', 30, async (options) => {
  const maybe = { scenarios: yesNoMaybe.scenarios, config: yesNoMaybe.CONFIG };
  await run(options, 'yes-no-maybe', 'Learning to say maybe', maybe);
  await run(options, 'tool-use', 'Learning to use a tool', { scenarios: toolUse.scenarios, config: toolUse.CONFIG });
});
