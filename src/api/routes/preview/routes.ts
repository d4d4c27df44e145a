/** The training endpoints. */
import type { Route } from '../../route-table.ts';
import {
  commitArtifact,
  createArtifact,
  deleteArtifact,
  getArtifact,
  listArtifacts,
  readArtifactFile,
  uploadArtifactFile,
} from './artifacts.ts';
import { baseModels } from './base-models.ts';
import { getLog, listLogs, logTrajectories, runHistory } from './logs.ts';
import { createModel, deleteCheckpoints, deleteModel, listCheckpoints, readAdapterFile } from './models.ts';
import { systemCheck } from './system-check.ts';
import {
  cancelTrainingJob,
  createSftTrainingJob,
  createTrainingJob,
  getTrainingJob,
  listTrainingEvents,
} from './training-jobs.ts';

export const PREVIEW_ROUTES: readonly Route[] = [
  { method: 'POST', path: '/v1/preview/models', handler: createModel },
  { method: 'DELETE', path: '/v1/preview/models/:model_id', handler: deleteModel },
  { method: 'GET', path: '/v1/preview/models/:model_id/checkpoints', handler: listCheckpoints },
  { method: 'DELETE', path: '/v1/preview/models/:model_id/checkpoints', handler: deleteCheckpoints },
  { method: 'GET', path: '/v1/preview/models/:model_id/checkpoints/:step/files/:file', handler: readAdapterFile },
  { method: 'POST', path: '/v1/preview/models/:model_id/log', handler: logTrajectories, upload: true },
  { method: 'GET', path: '/v1/preview/models/:model_id/log', handler: listLogs },
  { method: 'GET', path: '/v1/preview/models/:model_id/log/:log_id', handler: getLog },
  { method: 'GET', path: '/v1/preview/runs/:run_id/history', handler: runHistory },
  { method: 'POST', path: '/v1/preview/training-jobs', handler: createTrainingJob, upload: true },
  { method: 'POST', path: '/v1/preview/sft-training-jobs', handler: createSftTrainingJob },
  { method: 'GET', path: '/v1/preview/training-jobs/:training_job_id', handler: getTrainingJob },
  { method: 'POST', path: '/v1/preview/training-jobs/:training_job_id/cancel', handler: cancelTrainingJob },
  { method: 'GET', path: '/v1/preview/training-jobs/:training_job_id/events', handler: listTrainingEvents },
  { method: 'POST', path: '/v1/preview/artifacts', handler: createArtifact },
  { method: 'GET', path: '/v1/preview/artifacts', handler: listArtifacts },
  { method: 'GET', path: '/v1/preview/artifacts/:artifact_id', handler: getArtifact },
  { method: 'DELETE', path: '/v1/preview/artifacts/:artifact_id', handler: deleteArtifact },
  { method: 'PUT', path: '/v1/preview/artifacts/:artifact_id/files/:file', handler: uploadArtifactFile, upload: true },
  { method: 'GET', path: '/v1/preview/artifacts/:artifact_id/files/:file', handler: readArtifactFile },
  { method: 'POST', path: '/v1/preview/artifacts/:artifact_id/commit', handler: commitArtifact },
  { method: 'GET', path: '/v1/preview/base-models', handler: baseModels },
  { method: 'GET', path: '/v1/system-check', handler: systemCheck },
];
