/** A server of the starter model and a client of it. */
import { TrainingClient } from '../../examples/lib/client.ts';
import { ApiServer } from '../api/server.ts';

export interface Training {
  server: ApiServer;
  client: TrainingClient;
}

export async function startTraining(flags: string[] = []): Promise<Training> {
  const server = await ApiServer.start({ flags });
  return { server, client: new TrainingClient(server.url, server.key) };
}
