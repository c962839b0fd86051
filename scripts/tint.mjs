// Has Tint, the WGSL compiler of Dawn and Chromium, judge shaders: as the language is specified, and whether
// every barrier and subgroup operation is reached by all invocations or none.
//
//     node tint.mjs FOLDER           every .wgsl below FOLDER must be accepted
//     node tint.mjs --refused FOLDER every .wgsl below FOLDER must be refused
//
// The npm package `webgpu` is found from the working folder. No GPU and no driver are needed.

import { readFileSync, readdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const FEATURES = ['shader-f16', 'subgroups'];

async function open() {
    const require = createRequire(join(process.cwd(), 'package.json'));
    const { create, globals } = await import(pathToFileURL(require.resolve('webgpu')));
    Object.assign(globalThis, globals);
    const gpu = create(['backend=null']);
    const adapter = await gpu.requestAdapter();
    return { gpu, adapter, device: await adapter.requestDevice({ requiredFeatures: FEATURES }) };
}

// naga knows subgroups without the directive, and refuses it.
function asSpecified(text) {
    return /\bsubgroup/.test(text) ? 'enable subgroups;\n' + text : text;
}

// What Tint finds wrong with a text: errors, and warnings too.
async function faults(device, text) {
    device.pushErrorScope('validation');
    const module = device.createShaderModule({ code: asSpecified(text) });
    const { messages } = await module.getCompilationInfo();
    const error = await device.popErrorScope();
    if (error) return error.message;
    return messages
        .filter(({ type }) => type !== 'info')
        .map(({ type, lineNum, message }) => `${lineNum}: ${type}: ${message}`)
        .join('\n');
}

const refused = process.argv[2] === '--refused';
const folder = process.argv.at(-1);
const names = readdirSync(folder, { recursive: true }).filter((name) => name.endsWith('.wgsl'));
if (names.length === 0) {
    console.error(`${folder}: no shaders`);
    process.exit(1);
}
// All of it is kept: Dawn goes when what `create` gave is collected.
const dawn = await open();
let wrong = 0;
for (const name of names.sort()) {
    const found = await faults(dawn.device, readFileSync(join(folder, name), 'utf8'));
    if ((found !== '') === refused) continue;
    wrong += 1;
    console.error(`${name}: ${found || 'accepted, and must be refused'}`);
}
console.log(`tint: ${names.length} shaders, ${wrong} not ${refused ? 'refused' : 'accepted'}`);
process.exit(wrong === 0 ? 0 : 1);
