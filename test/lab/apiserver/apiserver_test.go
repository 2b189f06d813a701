package apiserver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// eventually polls until done is true, 10 s at most.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	if !poll(done) {
		t.Fatalf("not within 10s: %s", what)
	}
}

func poll(done func() bool) bool {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(10 * time.Second); !done(); <-ticker.C {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// assertGone fails unless the processes have ended and the files are removed.
func assertGone(t *testing.T, pids []int, paths ...string) {
	t.Helper()
	for _, pid := range pids {
		if running(pid) {
			t.Errorf("process %d still runs", pid)
		}
	}
	for _, path := range paths {
		if exists(path) {
			t.Errorf("%s is left", path)
		}
	}
}

func TestControlPlane(t *testing.T) {
	logs, kubeconfig := t.TempDir(), filepath.Join(t.TempDir(), "kubeconfig")
	widgets := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.org"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.org",
			Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{
					OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"},
				},
			}},
		},
	}
	c := StartT(t, Options{
		CRDs:           []*apiextensionsv1.CustomResourceDefinition{widgets},
		APIServerArgs:  map[string][]string{"service-cluster-ip-range": {"10.7.0.0/24"}},
		LogDir:         logs,
		KubeconfigPath: kubeconfig,
	})
	pids := c.guard.pids()
	if len(pids) != 2 {
		t.Fatalf("%d processes are registered, want 2", len(pids))
	}
	ctx := t.Context()

	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one"}}
	if err := c.Client.Create(ctx, object); err != nil {
		t.Fatal(err)
	}
	if err := c.Client.Patch(ctx, object, client.RawPatch("application/merge-patch+json",
		[]byte(`{"data":{"a":"b"}}`))); err != nil {
		t.Fatal(err)
	}
	if object.Data["a"] != "b" {
		t.Errorf("data after the patch: %v", object.Data)
	}
	widget := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.org/v1", "kind": "Widget", "metadata": map[string]any{
			"namespace": "default",
			"name":      "one",
		},
	}}
	if err := c.Client.Create(ctx, widget); err != nil {
		t.Error("custom resource:", err)
	}
	var service corev1.Service
	eventually(t, "the API server follows the argument", func() bool {
		return c.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: "kubernetes"}, &service) == nil &&
			strings.HasPrefix(service.Spec.ClusterIP, "10.7.0.")
	})
	assertKubeconfig(t, c.Kubeconfig)
	assertUserHasNoRights(t, c)

	begin := time.Now()
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("Stop took %s", took)
	}
	assertGone(t, pids, c.guard.dir, kubeconfig)
	if !exists(filepath.Join(logs, "kube-apiserver.log")) || !exists(filepath.Join(logs, "etcd.log")) {
		t.Error("the logs in LogDir are gone")
	}
	if err := c.Stop(); err != nil {
		t.Error("second Stop:", err)
	}
}

func assertKubeconfig(t *testing.T, path string) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	reader, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := reader.Get(t.Context(), client.ObjectKey{Name: "default"}, &corev1.Namespace{}); err != nil {
		t.Error("with the kubeconfig:", err)
	}
}

func assertUserHasNoRights(t *testing.T, c *ControlPlane) {
	t.Helper()
	config, err := c.AddUser("somebody", "some-group")
	if err != nil {
		t.Fatal(err)
	}
	reader, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = reader.List(t.Context(), &rbacv1.ClusterRoleList{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `"somebody"`) {
		t.Errorf("got %v, want that somebody is forbidden to list", err)
	}
}

func TestStartFails(t *testing.T) {
	t.Run("program that fails", func(t *testing.T) {
		assets := t.TempDir()
		t.Setenv(AssetsEnv, assets)
		executable(t, filepath.Join(assets, "etcd"), "echo the disk is on fire; exit 3")
		executable(t, filepath.Join(assets, "kube-apiserver"), "")
		_, err := Start(t.Context(), Options{})
		if err == nil || !strings.Contains(err.Error(), "the disk is on fire") {
			t.Errorf("got %v, want the end of the log", err)
		}
	})
	t.Run("missing definitions", func(t *testing.T) {
		t.Setenv("TMPDIR", t.TempDir()) // Tests of other packages start control planes, too.
		before := privateDirs(t)
		_, err := Start(t.Context(), Options{CRDPaths: []string{"does-not-exist"}})
		if err == nil || !strings.Contains(err.Error(), "does-not-exist") {
			t.Errorf("got %v, want an error that names the path", err)
		}
		if after := privateDirs(t); len(after) > len(before) {
			t.Errorf("directories are left: had %v, have %v", before, after)
		}
	})
}

func privateDirs(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), "runtime-watcher-controlplane-*"))
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

const dieEnv = "CONTROLPLANE_TEST_DIE"

// dieWithoutStop is the child process of TestNothingOutlivesTheOwner: it starts a control plane,
// reports it, and waits to be killed.
func dieWithoutStop() bool {
	if os.Getenv(dieEnv) == "" {
		return false
	}
	c, err := Start(context.Background(), Options{})
	if err != nil {
		fmt.Println("error", err)
		return true
	}
	fmt.Println(c.guard.dir, c.guard.pids()[0], c.guard.pids()[1])
	_, _ = io.Copy(io.Discard, os.Stdin)
	return true
}

func TestNothingOutlivesTheOwner(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), dieEnv+"=1")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close() }()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	line, err := bufio.NewReader(stdout).ReadString('\n')
	// To the whole group, as a terminal does.
	if killErr := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil || killErr != nil {
		t.Fatal(err, killErr)
	}
	_ = cmd.Wait()

	var dir string
	pids := make([]int, 2)
	if _, err := fmt.Sscan(line, &dir, &pids[0], &pids[1]); err != nil {
		t.Fatalf("child said %q: %v", line, err)
	}
	eventually(t, "its processes have ended", func() bool { return !running(pids[0]) && !running(pids[1]) })
	eventually(t, "its directory is removed", func() bool { return !exists(dir) })
}
