/** Runs before each test file: files of a worker share their modules, so a helper cannot register this for whoever imports it. */
import { afterAll } from 'vitest';
import { removeTemporaryDirectories } from './models/model-directory.ts';

afterAll(removeTemporaryDirectories);
