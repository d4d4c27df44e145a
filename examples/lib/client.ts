/** The training endpoints, beside the openai client for everything else. */
import OpenAI from 'openai';

export interface TrainedModel {
  id: string;
  entity: string;
  project: string;
  name: string;
}

export interface TrainingEvent {
  id: string;
  type: 'training_started' | 'gradient_step' | 'training_ended' | 'training_failed';
  data: Record<string, unknown>;
}

/** A message, or a choice of a chat completion exactly as it came. */
export type HistoryElement = OpenAI.ChatCompletionMessageParam | OpenAI.ChatCompletion.Choice;

export interface Trajectory {
  messages_and_choices: HistoryElement[];
  tools?: OpenAI.ChatCompletionTool[];
  reward: number;
}

export interface TrajectoryGroup {
  trajectories: Trajectory[];
}

/** A conversation of the training data; the last message is the assistant's. */
export interface Conversation {
  messages: OpenAI.ChatCompletionMessageParam[];
}

const POLL_MS = 50;

export class TrainingClient {
  readonly openai: OpenAI;
  readonly #url: string;
  readonly #key: string;

  /** `url`: the server's address, or the base URL with /v1. */
  constructor(url: string, key: string) {
    this.#url = url.replace(/\/+$/, '').replace(/\/v1$/, '');
    this.#key = key;
    this.openai = new OpenAI({ baseURL: `${this.#url}/v1`, apiKey: key });
  }

  /** Registers a model on the server's base model, or finds it. */
  async register(project: string, name: string): Promise<TrainedModel> {
    const { data } = await this.#json<{ data: { id: string }[] }>('GET', '/v1/models');
    const [base] = data;
    if (!base) throw new Error('The server serves no model.');
    return this.#json('POST', '/v1/preview/models', { project, name, base_model: base.id, return_existing: true });
  }

  /** The name under which the newest step serves, or the step given. */
  inferenceName({ entity, project, name }: TrainedModel, step?: number): string {
    return `wandb-artifact:///${entity}/${project}/${name}${step === undefined ? '' : `:step${step}`}`;
  }

  /** Trains on the groups and waits. Returns the metrics of each gradient step. */
  async train(model: TrainedModel, groups: TrajectoryGroup[], config: object): Promise<Record<string, unknown>[]> {
    const body = { model_id: model.id, trajectory_groups: groups, experimental_config: config };
    return this.#wait((await this.#json<{ id: string }>('POST', '/v1/preview/training-jobs', body)).id);
  }

  /** Trains on the conversations once in their order, and waits. */
  async trainSft(model: TrainedModel, data: Conversation[], config: object): Promise<Record<string, unknown>[]> {
    return this.#wait(await this.submitSft(model, data, config));
  }

  /** Uploads the conversations and creates the job. Resolves with its id. */
  async submitSft(model: TrainedModel, data: Conversation[], config: object): Promise<string> {
    const url = await this.#upload(model, data);
    const body = { model_id: model.id, training_data_url: url, config };
    return (await this.#json<{ id: string }>('POST', '/v1/preview/sft-training-jobs', body)).id;
  }

  async #upload(model: TrainedModel, data: Conversation[]): Promise<string> {
    const { project } = model;
    const artifact = await this.#json<{ id: string }>('POST', '/v1/preview/artifacts', {
      project,
      name: `${model.name}-data`,
    });
    const lines = data.map((conversation) => JSON.stringify(conversation)).join('\n');
    const path = `/v1/preview/artifacts/${artifact.id}`;
    await this.#send('PUT', `${path}/files/train.jsonl`, lines, 'application/octet-stream');
    const { url } = await this.#json<{ url: string | null }>('POST', `${path}/commit`, {});
    if (url === null) throw new Error('The artifact has no address.');
    return url;
  }

  async #wait(jobId: string): Promise<Record<string, unknown>[]> {
    const steps: Record<string, unknown>[] = [];
    for (let after = ''; ; await new Promise((resolve) => setTimeout(resolve, POLL_MS))) {
      const query = after === '' ? '' : `?after=${after}`;
      const { data } = await this.#json<{ data: TrainingEvent[] }>(
        'GET',
        `/v1/preview/training-jobs/${jobId}/events${query}`,
      );
      for (const event of data) {
        after = event.id;
        if (event.type === 'gradient_step') steps.push(event.data);
        if (event.type === 'training_failed')
          throw new Error(`Training failed: ${String(event.data['error_message'])}`);
        if (event.type === 'training_ended') return steps;
      }
    }
  }

  async #json<T>(method: string, path: string, body?: object): Promise<T> {
    return (await (await this.#send(method, path, body && JSON.stringify(body), 'application/json')).json()) as T;
  }

  async #send(method: string, path: string, body: string | undefined, type: string): Promise<Response> {
    const headers = { authorization: `Bearer ${this.#key}`, 'content-type': type };
    const init = { method, headers, ...(body === undefined ? {} : { body }) };
    const response = await fetch(this.#url + path, init).catch((error: Error) => {
      throw new Error(`${this.#url} does not answer: ${String(error.cause ?? error)}`);
    });
    if (!response.ok) throw new Error(`${method} ${this.#url}${path}: ${response.status} ${await response.text()}`);
    return response;
  }
}
