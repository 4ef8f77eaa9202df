// Runs a Python file under Pyodide (Python as WebAssembly), with the project's folder as /project.
//   node pyodide_run.mjs FOLDER_OF_THE_NPM_PACKAGE PROJECT FILE
import { pathToFileURL } from "node:url";

const [library, project, file] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${library}/pyodide.mjs`));
const python = await loadPyodide();
python.FS.mkdirTree("/project");
python.FS.mount(python.FS.filesystems.NODEFS, { root: project }, "/project");
try {
  python.runPython(`
import runpy, sys
sys.path[:0] = ["/project", "/project/tests/reference"]
runpy.run_path("/project/${file}", run_name="__main__")
`);
} catch (error) {
  console.log(error.message);
  process.exitCode = 1;
}
