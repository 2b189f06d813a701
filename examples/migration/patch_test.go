package migration

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"flag"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/test"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/today"
)

// The guide, the patches and the fixtures stand for a commit of lifecycle-manager.
var (
	checkout = flag.String("lifecycle-manager", "", "git `directory` of kyma-project/lifecycle-manager")
	commit   = flag.String("commit", "c5b83f1", "the `commit` there")
)

// These are the modules of the stub.
const (
	lifecycleManager = "github.com/kyma-project/lifecycle-manager"
	listener         = "github.com/kyma-project/runtime-watcher/listener"
)

// patches are those of the guide, in its order.
var patches = []string{
	"2-listener", "2-pinning", "3-watchers", "3-config", "4-certificates", "5-agents", "5-resends", "6-removal", "8-end",
}

// TestPatches applies the patches to a stub of lifecycle-manager, and takes them back. The stub compiles with all of
// them, and its types are right before each. The image and the address are edited after the first patch, as the guide
// says.
func TestPatches(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := unpack(t, dir)
	const file, example, edited = "internal/controller/kyma/setup.go", ".example.com", ".edited.invalid"
	for i, name := range patches {
		apply(t, dir, name)
		if i == 0 {
			replace(t, dir, file, example, edited)
		}
	}
	compiled := compile(t, dir)
	for i, name := range slices.Backward(patches) {
		if i == 0 {
			replace(t, dir, file, edited, example)
		}
		apply(t, dir, name, "-R")
		checkTypes(t, dir, compiled)
	}
	for name, text := range files {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, text) {
			t.Errorf("the way back changes %s: %v\n%s", name, err, got)
		}
	}
}

// TestPatchesOfCommit applies them to lifecycle-manager itself. Its modules must need no other version. The test
// needs -lifecycle-manager.
func TestPatchesOfCommit(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{
		"cmd/main.go", "internal/controller/kyma/setup.go", "internal/controller/kyma/controller.go",
		"internal/pkg/metrics/watcher.go", "config/crd/kustomization.yaml", "config/istio/endpoints_authorization_policy.yaml",
	} {
		write(t, dir, name, show(t, name))
	}
	for _, name := range patches {
		apply(t, dir, name)
	}
	page := string(test.Read(t, guide))
	theirs := versionsIn(string(show(t, "go.mod")))
	for module, want := range ourFloors(t) {
		have := theirs[module]
		row := fmt.Sprintf("| %s | %s | %s |", module, have, want)
		if isNewer := have != "" && newer(want, have); isNewer != strings.Contains(page, row) {
			t.Errorf("%s has the row %q: %t, want %t", guide, row, !isNewer, isNewer)
		}
	}
}

// ourFloors are the versions that the modules of the guide require.
func ourFloors(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, folder := range []string{"", "adapters/admission/", "adapters/controllerruntime/", "adapters/prometheus/", "controlplane/"} {
		for module, floor := range versionsIn(string(test.Read(t, folder+"go.mod"))) {
			if all[module] == "" || newer(floor, all[module]) {
				all[module] = floor
			}
		}
	}
	return all
}

func newer(a, b string) bool {
	return version.MustParseSemantic(b).LessThan(version.MustParseSemantic(a))
}

var required = regexp.MustCompile(`(?m)^(?:require|\t)\s*(\S+) (v\S+)`)

func versionsIn(module string) map[string]string {
	all := map[string]string{}
	for _, found := range required.FindAllStringSubmatch(module, -1) {
		if !strings.HasPrefix(found[1], "github.com/runtime-watcher/") {
			all[found[1]] = found[2]
		}
	}
	return all
}

// TestSizeOfPatches holds the goals: 25 lines in two files for step 2, and 60 in three files of Go and two of the
// kustomization for the others.
func TestSizeOfPatches(t *testing.T) {
	for _, goal := range []struct {
		patches      []string
		lines, files int
	}{{patches[:2], 25, 2}, {patches[2:], 60, 5}} {
		lines := 0
		files := map[string]bool{}
		for _, name := range goal.patches {
			for line := range strings.Lines(string(test.Read(t, "examples/migration/patches/"+name+".patch"))) {
				if file, found := strings.CutPrefix(line, "+++ "); found {
					files[file] = true
				} else if strings.HasPrefix(line, "+") || strings.HasPrefix(line, "-") && !strings.HasPrefix(line, "--- ") {
					lines++
				}
			}
		}
		if lines == 0 || lines > goal.lines || len(files) > goal.files {
			t.Errorf("%v: %d lines in %d files, want 1 to %d in at most %d", goal.patches, lines, len(files), goal.lines, goal.files)
		}
		t.Logf("%v: %d lines in %d files", goal.patches, lines, len(files))
	}
}

// unpack writes the stub as a module, with the modules of this repository.
func unpack(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	_, text, _ := strings.Cut(string(test.Read(t, "examples/migration/testdata/operator.txtar")), "\n-- ")
	for file := range strings.SplitSeq(text, "\n-- ") {
		name, content, _ := strings.Cut(file, " --\n")
		files[name] = []byte(content + "\n")
		write(t, dir, name, files[name])
	}
	const definition = "config/crd/bases/operator.kyma-project.io_watchers.yaml"
	files[definition] = rig.Must(yaml.Marshal(today.Watchers(true).Object))
	write(t, dir, definition, files[definition])
	module := strings.NewReplacer(
		"github.com/runtime-watcher/runtime-watcher/examples\n", lifecycleManager+"\n",
		"=> ..", "=> "+test.Root()).Replace(string(test.Read(t, "examples/go.mod")))
	write(t, dir, "go.mod", []byte(module+"\nrequire "+listener+" v0.0.0\n\nreplace "+listener+" => ./listener\n"))
	write(t, dir, "go.sum", test.Read(t, "examples/go.sum"))
	write(t, dir, "listener/go.mod", []byte("module "+listener+"\n\ngo 1.26\n"))
	return files
}

func write(t *testing.T, dir, name string, text []byte) {
	t.Helper()
	file := filepath.Join(dir, name)
	rig.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	rig.NoError(t, os.WriteFile(file, text, 0o600))
}

// replace edits a file.
func replace(t *testing.T, dir, name, from, to string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil || !bytes.Contains(text, []byte(from)) {
		t.Fatalf("%s has no %s: %v\n%s", name, from, err, text)
	}
	write(t, dir, name, bytes.ReplaceAll(text, []byte(from), []byte(to)))
}

func apply(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	patch := filepath.Join(test.Root(), "examples", "migration", "patches", name+".patch")
	run(t, dir, "git", append(append([]string{"apply"}, args...), patch)...)
}

// compile returns the files with the types of all packages. It links nothing.
func compile(t *testing.T, dir string) map[string]string {
	t.Helper()
	exports := map[string]string{}
	out := run(t, dir, "go", "list", "-export", "-deps", "-mod=mod", "-f", "{{.ImportPath}} {{.Export}}", "./...", listener+"/...")
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[name] = file
	}
	return exports
}

// stub has the types of the packages of lifecycle-manager in a folder. Those of others are compiled.
type stub struct {
	dir     string
	files   *token.FileSet
	checked map[string]*types.Package
	others  types.Importer
}

// checkTypes finds what a compiler would refuse, without the time that it takes.
func checkTypes(t *testing.T, dir string, compiled map[string]string) {
	t.Helper()
	s := &stub{dir: dir, files: token.NewFileSet(), checked: map[string]*types.Package{}}
	s.others = importer.ForCompiler(s.files, "gc", func(name string) (io.ReadCloser, error) { return os.Open(compiled[name]) })
	if _, err := s.Import(lifecycleManager + "/cmd"); err != nil {
		t.Error(err)
	}
}

// Import implements [types.Importer].
func (s *stub) Import(name string) (*types.Package, error) {
	folder, ours := strings.CutPrefix(name, lifecycleManager+"/")
	if !ours {
		return s.others.Import(name)
	}
	if s.checked[name] != nil {
		return s.checked[name], nil
	}
	paths, err := filepath.Glob(filepath.Join(s.dir, folder, "*.go"))
	if err != nil {
		return nil, err
	}
	files := make([]*ast.File, len(paths))
	for i, path := range paths {
		if files[i], err = parser.ParseFile(s.files, path, nil, parser.SkipObjectResolution); err != nil {
			return nil, err
		}
	}
	config := types.Config{Importer: s}
	s.checked[name], err = config.Check(name, s.files, files, nil)
	return s.checked[name], err
}

// show returns a file of the named commit.
func show(t *testing.T, name string) []byte {
	t.Helper()
	if *checkout == "" {
		t.Skip("needs -lifecycle-manager, a git directory with commit " + *commit)
	}
	return run(t, *checkout, "git", "show", *commit+":"+name)
}

func run(t *testing.T, dir, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOPROXY=off", "GOFLAGS=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return out
}

const (
	fixtures = "test/lab/today/"
	// ofCode begins a row of the list for code that the stand-ins act as, without a file of objects.
	ofCode = "code"
)

var (
	word        = regexp.MustCompile(`[A-Za-z0-9/][A-Za-z0-9._/*-]+`)
	placeholder = regexp.MustCompile(`%\[\d\]s`)
	kustomized  = regexp.MustCompile(`^klm-`)
)

// TestFixtures compares the objects of package today with the lines that they stand for. It needs -lifecycle-manager.
// If the first lines are objects, each field must have the same value there. Otherwise the lines must have each word.
func TestFixtures(t *testing.T) {
	upstream := map[string]string{}
	spare := map[string][]string{}
	code := map[string]bool{}
	for _, row := range rows(t) {
		if row[1] == "but" {
			spare[row[0]] = append(spare[row[0]], row[2:]...)
			continue
		}
		var first, last int
		if _, err := fmt.Sscanf(row[2], "%d-%d", &first, &last); err != nil || first < 1 || last < first {
			t.Fatalf("lines %q, want <first>-<last>", row[2])
		}
		all := strings.Split(string(show(t, row[1])), "\n")
		text := strings.Join(all[min(first-1, len(all)):min(last, len(all))], "\n")
		if sum := fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:12]; sum != row[3] {
			t.Errorf("%s:%s has changed, so compare it with %s, and note %s:\n%s", row[1], row[2], row[0], sum, text)
		}
		if row[0] == ofCode {
			continue
		}
		if upstream[row[0]] == "" {
			code[row[0]] = filepath.Ext(row[1]) != ".yaml" || strings.Contains(row[1], "/crd/")
		}
		upstream[row[0]] += "\n---\n" + text
	}
	for object, text := range upstream {
		ours := string(test.Read(t, fixtures+"objects/"+object))
		compare := words
		if !code[object] {
			compare = fields
		}
		slices.Sort(spare[object])
		if other := compare(ours, text); !slices.Equal(other, spare[object]) {
			t.Errorf("%s has beyond its lines of lifecycle-manager\n%s\nwant\n%s",
				object, strings.Join(other, "\n"), strings.Join(spare[object], "\n"))
		}
	}
}

// words returns those that the lines do not have.
func words(ours, lines string) []string {
	ours, lines = regexp.MustCompile(`(?m)(^|\s)#.*$`).ReplaceAllString(ours, ""), strings.ToLower(lines)
	other := slices.DeleteFunc(word.FindAllString(ours, -1), func(w string) bool {
		return strings.Contains(lines, strings.ToLower(w))
	})
	slices.Sort(other)
	return slices.Compact(other)
}

// fields returns the fields that the objects in the lines do not have with that value. Spaces are underscores.
func fields(ours, lines string) []string {
	has := leaves(lines)
	other := leaves(ours)
	maps.DeleteFunc(other, func(leaf string, _ bool) bool { return has[leaf] })
	return slices.Sorted(maps.Keys(other))
}

// leaves are <kind>/<name>.<path>=<value>. A kustomization sets the prefix of names, and namespaces.
func leaves(text string) map[string]bool {
	all := map[string]bool{}
	for document := range strings.SplitSeq(text, "\n---\n") {
		var object map[string]any
		if yaml.Unmarshal(placeholder.ReplaceAll([]byte(document), []byte("ours")), &object) != nil || object == nil {
			all["malformed:"+document] = true
			continue
		}
		meta, _ := object["metadata"].(map[string]any)
		name := fmt.Sprint(meta["name"])
		delete(meta, "namespace")
		maps.Copy(all, leavesOf(fmt.Sprint(object["kind"])+"/"+kustomized.ReplaceAllString(name, ""), object))
	}
	return all
}

func leavesOf(at string, value any) map[string]bool {
	all := map[string]bool{}
	switch v := value.(type) {
	case map[string]any:
		for key, part := range v {
			maps.Copy(all, leavesOf(at+"."+key, part))
		}
	case []any:
		for _, part := range v {
			named, _ := part.(map[string]any)
			maps.Copy(all, leavesOf(fmt.Sprintf("%s[%v]", at, cmp.Or(named["name"], any(""))), part))
		}
	default:
		all[strings.ReplaceAll(fmt.Sprintf("%s=%v", at, kustomized.ReplaceAllString(fmt.Sprint(v), "")), " ", "_")] = true
	}
	return all
}

// TestFixturesAreListed wants each file of objects in the list.
func TestFixturesAreListed(t *testing.T) {
	listed := map[string]bool{"rights.yaml": true}
	for _, row := range rows(t) {
		listed[row[0]] = true
	}
	delete(listed, ofCode)
	files, err := filepath.Glob(filepath.Join(test.Root(), fixtures, "objects", "*"))
	if err != nil || len(files) < len(listed) {
		t.Fatalf("%d files, want the %d of the list: %v", len(files), len(listed), err)
	}
	for _, file := range files {
		if !listed[filepath.Base(file)] {
			t.Errorf("%slines.txt does not say what %s stands for", fixtures, filepath.Base(file))
		}
	}
}

// rows are those of the list: an object or the word code, and a file with lines and checksum, or "but" and words.
func rows(t *testing.T) (rows [][]string) {
	t.Helper()
	for line := range strings.Lines(string(test.Read(t, fixtures+"lines.txt"))) {
		if row := strings.Fields(line); len(row) > 0 && row[0] != "#" {
			if len(row) != 4 && row[1] != "but" {
				t.Fatalf("%slines.txt: want an object, a file, lines and a checksum, have %q", fixtures, line)
			}
			rows = append(rows, row)
		}
	}
	return rows
}
