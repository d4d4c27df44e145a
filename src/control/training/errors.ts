/** Why a job cannot be: told to the client, as 422 where the job is accepted and as training_failed where it runs. */

/** Names the field at fault, as a path into the body: `experimental_config.epsilon`, `trajectory_groups.0.trajectories.2`. */
export class TrainingInputError extends Error {
  readonly field: string;
  constructor(field: string, message: string) {
    super(`${field}: ${message}`);
    this.name = 'TrainingInputError';
    this.field = field;
  }
}

/** What is wrong is the server's and may pass: the job is run again. Its message is for the client, where it does not pass. */
export class InterruptedError extends Error {
  constructor(message: string, options: ErrorOptions) {
    super(message, options);
    this.name = 'InterruptedError';
  }
}

/** Nothing is wrong: the job rests behind a snapshot, so that others have their turn. */
export class TurnOverError extends Error {
  constructor() {
    super('Other jobs have their turn.');
    this.name = 'TurnOverError';
  }
}

/** Nothing is wrong with one field, but the job cannot go on. Its message is for the client. */
export class TrainingFailedError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'TrainingFailedError';
  }
}
