package charts

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/test"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// The pods of the chart wait for a Secret, so a page with another name leaves them waiting.
func TestSecretInTheGuide(t *testing.T) {
	t.Parallel()
	page := string(test.Read(t, "docs/guide/joining.md"))
	create := regexp.MustCompile(`kubectl (-n runtime-watcher create secret generic runtime-watcher-tls .*)`)
	command := create.FindStringSubmatch(page)
	if command == nil {
		t.Fatal("the page does not create the Secret runtime-watcher-tls")
	}

	folder := t.TempDir()
	args := strings.Fields(command[1])
	for i, arg := range args {
		file, isFile := strings.CutPrefix(arg, "--from-file=")
		if isFile {
			path := filepath.Join(folder, file)
			rig.NoError(t, os.WriteFile(path, []byte(file), 0o600))
			args[i] = "--from-file=" + path
		}
	}
	manifest := rig.Kubectl(t, append(args, "--dry-run=client", "--output=yaml")...)
	var secret corev1.Secret
	rig.NoError(t, yaml.Unmarshal([]byte(manifest), &secret))

	text := render(t, agent, exampleValues()...)
	rig.Says(t, "the Deployment", text, "secretName: "+secret.Name)
	mounted := regexp.MustCompile(`/etc/runtime-watcher/tls/([a-z.]+)`).FindAllStringSubmatch(text, -1)
	for _, path := range mounted {
		if string(secret.Data[path[1]]) != path[1] {
			t.Errorf("the Deployment reads the key %s, which the Secret of the page lacks", path[1])
		}
	}
	if len(mounted) != len(secret.Data) {
		t.Errorf("the Deployment reads %d files, and the Secret has %d keys", len(mounted), len(secret.Data))
	}
}
