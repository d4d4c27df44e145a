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
  { method: 'POST', path: '/v1/preview/models', handler: createModel, turns: true },
  { method: 'DELETE', path: '/v1/preview/models/:model_id', handler: deleteModel, turns: true },
  { method: 'GET', path: '/v1/preview/models/:model_id/checkpoints', handler: listCheckpoints, turns: true },
  { method: 'DELETE', path: '/v1/preview/models/:model_id/checkpoints', handler: deleteCheckpoints, turns: true },
  {
    method: 'GET',
    path: '/v1/preview/models/:model_id/checkpoints/:step/files/:file',
    handler: readAdapterFile,
    turns: true,
  },
  { method: 'POST', path: '/v1/preview/models/:model_id/log', handler: logTrajectories, upload: true },
  { method: 'GET', path: '/v1/preview/models/:model_id/log', handler: listLogs, turns: true },
  { method: 'GET', path: '/v1/preview/models/:model_id/log/:log_id', handler: getLog, turns: true },
  { method: 'GET', path: '/v1/preview/runs/:run_id/history', handler: runHistory, turns: true },
  { method: 'POST', path: '/v1/preview/training-jobs', handler: createTrainingJob, upload: true },
  { method: 'POST', path: '/v1/preview/sft-training-jobs', handler: createSftTrainingJob },
  { method: 'GET', path: '/v1/preview/training-jobs/:training_job_id', handler: getTrainingJob, turns: true },
  {
    method: 'POST',
    path: '/v1/preview/training-jobs/:training_job_id/cancel',
    handler: cancelTrainingJob,
    turns: true,
  },
  {
    method: 'GET',
    path: '/v1/preview/training-jobs/:training_job_id/events',
    handler: listTrainingEvents,
    turns: true,
  },
  { method: 'POST', path: '/v1/preview/artifacts', handler: createArtifact, turns: true },
  { method: 'GET', path: '/v1/preview/artifacts', handler: listArtifacts, turns: true },
  { method: 'GET', path: '/v1/preview/artifacts/:artifact_id', handler: getArtifact, turns: true },
  { method: 'DELETE', path: '/v1/preview/artifacts/:artifact_id', handler: deleteArtifact, turns: true },
  { method: 'PUT', path: '/v1/preview/artifacts/:artifact_id/files/:file', handler: uploadArtifactFile, upload: true },
  { method: 'GET', path: '/v1/preview/artifacts/:artifact_id/files/:file', handler: readArtifactFile, turns: true },
  { method: 'POST', path: '/v1/preview/artifacts/:artifact_id/commit', handler: commitArtifact, turns: true },
  { method: 'GET', path: '/v1/preview/base-models', handler: baseModels },
  { method: 'GET', path: '/v1/system-check', handler: systemCheck },
];
