/** Runs vitest with its output shown and counts what its JSON report says. */
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { bin } from './checks.mjs';
import { root } from './paths.mjs';

function runShown(args) {
  return new Promise((resolve) => {
    const child = spawn(bin('vitest'), args, { cwd: root, stdio: 'inherit' });
    child.on('error', (error) => {
      console.log(`vitest could not be started: ${error.message}`);
      resolve(1);
    });
    child.on('close', (code) => resolve(code ?? 1));
  });
}

/** A file that could not be loaded has no tests to count: it counts as one failure itself. */
export function countReport(report) {
  const broken = report.testResults.filter((file) => file.status === 'failed' && file.assertionResults.length === 0);
  return {
    passed: report.numPassedTests,
    failed: report.numFailedTests + broken.length,
    skipped: report.numPendingTests + report.numTodoTests,
  };
}

export async function vitestTests(args) {
  const folder = mkdtempSync(path.join(tmpdir(), 'tandem-vitest-'));
  const file = path.join(folder, 'report.json');
  try {
    const reporters = ['--reporter=default', '--reporter=json', `--outputFile.json=${file}`];
    const code = await runShown(['run', ...reporters, ...args]);
    const counts = countReport(JSON.parse(readFileSync(file, 'utf8')));
    // An error outside any test (an unhandled rejection, a crashed worker) fails the run too.
    if (code !== 0 && counts.failed === 0) counts.failed++;
    return counts;
  } catch (error) {
    console.log(`vitest left no report: ${error.message}`);
    return { passed: 0, failed: 1, skipped: 0 };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
