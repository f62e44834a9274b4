#!/usr/bin/env node
// Starts the kvant that npm installed for this system.
"use strict";

const { spawnSync } = require("node:child_process");
const os = require("node:os");

const name = `kvant-${process.platform}-${process.arch}`;
const program = process.platform === "win32" ? "kvant.exe" : "kvant";

let path;
try {
  path = require.resolve(`${name}/bin/${program}`);
} catch {
  console.error(`error: the package ${name} is not installed. Either there is no kvant for this system (musl-based ones such as
       Alpine need the static archive), or npm left out optional packages: install without --omit=optional.`);
  process.exit(1);
}

const ended = spawnSync(path, process.argv.slice(2), { stdio: "inherit" });
if (ended.error) {
  console.error(`error: cannot start ${path}: ${ended.error.message}`);
  process.exit(1);
}
// As a shell says it of a program that a signal ended.
process.exit(ended.status ?? 128 + (os.constants.signals[ended.signal] ?? 0));
