/** The server's address and key: from the command line, or from the environment. */
import { parseArgs } from 'node:util';
import { TrainingClient } from './client.ts';

export interface ExampleOptions {
  client: TrainingClient;
  project: string;
  steps: number;
}

export function readArguments(defaultSteps: number): ExampleOptions {
  const { values } = parseArgs({
    options: {
      url: { type: 'string', default: process.env['TANDEM_URL'] ?? 'http://127.0.0.1:8000' },
      key: { type: 'string', default: process.env['TANDEM_API_KEY'] ?? '' },
      project: { type: 'string', default: 'examples' },
      steps: { type: 'string', default: String(defaultSteps) },
    },
  });
  if (values.key === '') throw new Error('Give the key that the server showed: --key tk-...');
  return { client: new TrainingClient(values.url, values.key), project: values.project, steps: Number(values.steps) };
}
