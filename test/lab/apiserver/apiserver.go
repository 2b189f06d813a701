// Package apiserver builds the real kube-apiserver and etcd and runs them as child processes,
// for tests and examples that need a real API server.
//
// No process outlives its owner. [ControlPlane.Stop] ends them. If the owner ends without that
// call, as by a panic, Ctrl-C or SIGKILL, a watchdog process ends them. The package installs no
// signal handler. A program that ends gracefully after Ctrl-C catches the signal and calls Stop.
// The children do not get the signal, so they run until that call.
//
// It needs a Unix system with /bin/sh and a temporary directory in which programs may be executed.
package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
)

// stopGrace is how long each process may take to end by itself. The API server would wait longer
// for open watches, but nothing of it is kept anyway.
const stopGrace = 2 * time.Second

// exitLimit bounds the wait for the end of a process that was killed. It takes seconds where the machine has no
// processor time for it.
const exitLimit = time.Minute

// startTimeout bounds the start, without the time to build the binaries. It is long enough for many
// custom resource definitions on a machine with other work.
const startTimeout = 3 * time.Minute

// Options are the choices of [Start]. The zero value starts an empty control plane.
type Options struct {
	// CRDPaths are files, or directories of files, with custom resource definitions to install. A
	// path that does not exist causes an error.
	CRDPaths []string

	// CRDs are custom resource definitions to install in addition to CRDPaths. They are not
	// modified.
	CRDs []*apiextensionsv1.CustomResourceDefinition

	// Scheme is the scheme of ControlPlane.Client. Default: client-go's scheme.
	Scheme *runtime.Scheme

	// Host is the address that the API server listens on, such as ::1. Default: 127.0.0.1.
	Host string

	// APIServerArgs are flags of kube-apiserver: the name without dashes, and its values, which
	// replace the default.
	APIServerArgs map[string][]string

	// KubeconfigPath is the file to write the administrator's kubeconfig to; Stop removes it.
	// Default: in a private temporary directory.
	KubeconfigPath string

	// LogDir is an existing directory that only this control plane uses. The files
	// kube-apiserver.log and etcd.log in it stay. Default: the files are in a private temporary
	// directory, and Stop removes them.
	LogDir string

	// Logger logs start and stop. Default: log lines are discarded.
	Logger *slog.Logger
}

// ControlPlane is a running API server with its etcd, on random ports of the loopback interface.
// Its fields are set by Start and must not be changed; its methods may be called concurrently.
type ControlPlane struct {
	// Config is the configuration of an administrator. It has no client-side rate limits, because
	// they would delay a test. Copy it (rest.CopyConfig) before you change it.
	Config *rest.Config

	// Kubeconfig is the absolute path of a kubeconfig for kubectl and other programs, with the same
	// rights.
	Kubeconfig string

	// Client is a client without a cache for Config.
	Client client.Client

	plane    *envtest.ControlPlane
	holders  []int      // of its ports
	users    sync.Mutex // envtest numbers its certificates without one
	guard    *guard
	logger   *slog.Logger
	stopOnce sync.Once
	stopErr  error
}

// Start starts a control plane and returns when it serves and its custom resource definitions are
// established: about three seconds, if the binaries exist, see [Assets]. Several control planes may
// be started and run in parallel.
//
// ctx bounds only the start. If Start fails, or ctx ends before it returns, no process is left. The
// error then contains the last lines of the logs. Otherwise the caller must call Stop.
func Start(ctx context.Context, opts Options) (*ControlPlane, error) {
	assets, err := Assets(ctx, AssetsOptions{})
	if err != nil {
		return nil, fmt.Errorf("start control plane: %w", err)
	}

	guard, err := newGuard(assets)
	if err != nil {
		return nil, fmt.Errorf("start control plane: %w", err)
	}

	c := &ControlPlane{guard: guard, logger: cmp.Or(opts.Logger, slog.New(slog.DiscardHandler))}
	if err := c.start(ctx, opts); err != nil {
		return nil, errors.Join(fmt.Errorf("start control plane: %w", err), c.Stop())
	}

	return c, nil
}

func (c *ControlPlane) start(ctx context.Context, opts Options) error {
	begin := time.Now()
	logs, err := openLogs(opts.LogDir, c.guard.dir)
	defer logs.close() // the processes have their own handles

	if err != nil {
		return fmt.Errorf("log: %w", err)
	}

	c.plane = newPlane(c.guard, logs, opts)
	if err := errors.Join(c.reserve(cmp.Or(opts.Host, localHost)), c.startPlane(ctx, opts)); err != nil {
		return fmt.Errorf("%w%s", err, logs.tail())
	}

	c.logger.InfoContext(ctx, "control plane started", "url", c.Config.Host, "kubeconfig", c.Kubeconfig, "duration",
		time.Since(begin))
	return nil
}

func newPlane(g *guard, logs logs, opts Options) *envtest.ControlPlane {
	plane := &envtest.ControlPlane{
		APIServer: &envtest.APIServer{
			Path: g.path("kube-apiserver"), CertDir: g.path("certs"), Out: logs[1], Err: logs[1],
			StartTimeout: startTimeout, StopTimeout: stopGrace,
		},
		Etcd: &envtest.Etcd{
			Path: g.path("etcd"), DataDir: g.path("etcd-data"), Out: logs[0], Err: logs[0],
			StartTimeout: startTimeout, StopTimeout: stopGrace,
		},
	}

	args := plane.APIServer.Configure()
	for name, values := range opts.APIServerArgs {
		args.Set(name, values...)
	}
	return plane
}

const localHost = "127.0.0.1"

// reserve holds the ports until Stop. Without that, envtest finds free ones and releases them, and another process may
// get them in the seconds until the programs listen.
func (c *ControlPlane) reserve(host string) error {
	var ports [3]string
	for i := range ports {
		holder, port, err := machine.ReservePort()
		if err != nil {
			return err
		}

		c.holders, ports[i] = append(c.holders, holder), strconv.Itoa(port)
	}
	c.plane.APIServer.ListenAddr = envtest.ListenAddr{Address: host, Port: ports[0]}
	c.plane.Etcd.URL = &url.URL{Scheme: "http", Host: net.JoinHostPort(localHost, ports[1])}
	c.plane.Etcd.Configure().Set("listen-peer-urls", "http://"+net.JoinHostPort(localHost, ports[2]))
	return nil
}

// startPlane bounds the start of envtest, which has no context. When ctx ends, the guard kills its
// processes, and envtest gives up.
func (c *ControlPlane) startPlane(ctx context.Context, opts Options) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready after %s", startTimeout))
	defer cancel()

	shut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(shut)
		c.guard.shut()
	})
	err := c.plane.Start()
	if err == nil {
		err = c.prepare(ctx, opts)
	}
	if !stop() {
		<-shut
		return errors.Join(context.Cause(ctx), err)
	}

	return err
}

// prepare does what envtest.Environment does after the start, which waits for the default namespace for 5 s and for
// definitions for 10 s: too short on a busy machine.
func (c *ControlPlane) prepare(ctx context.Context, opts Options) error {
	admin, err := c.plane.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}},
		&rest.Config{QPS: -1}) // no limit
	if err != nil {
		return fmt.Errorf("add administrator: %w", err)
	}

	c.Config = admin.Config()
	if c.Client, err = client.New(c.Config, client.Options{Scheme: opts.Scheme}); err != nil {
		return err
	}
	if err := c.awaitDefaultNamespace(ctx); err != nil {
		return err
	}
	if err := c.writeKubeconfig(opts.KubeconfigPath, admin); err != nil {
		return err
	}

	install := envtest.CRDInstallOptions{
		Scheme: opts.Scheme, Paths: opts.CRDPaths, ErrorIfPathMissing: true, MaxTime: startTimeout,
	}
	for _, crd := range opts.CRDs {
		install.CRDs = append(install.CRDs, crd.DeepCopy())
	}

	if len(install.Paths)+len(install.CRDs) == 0 {
		return nil
	}

	_, err = envtest.InstallCRDs(c.Config, install)
	return err
}

func (c *ControlPlane) awaitDefaultNamespace(ctx context.Context) error {
	namespaces, err := client.New(c.Config, client.Options{}) // opts.Scheme may lack the kind.
	if err != nil {
		return err
	}

	var missing error
	if wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		missing = namespaces.Get(ctx, client.ObjectKey{Name: metav1.NamespaceDefault}, new(corev1.Namespace))
		return missing == nil, nil
	}) != nil {
		return fmt.Errorf("default namespace: %w", missing)
	}

	return nil
}

func (c *ControlPlane) writeKubeconfig(path string, admin *envtest.AuthenticatedUser) error {
	content, err := admin.KubeConfig()
	if err == nil {
		c.Kubeconfig, err = filepath.Abs(cmp.Or(path, c.guard.path("kubeconfig")))
	}
	if err == nil {
		err = os.WriteFile(c.Kubeconfig, content, 0o600)
	}
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}

	return nil
}

// AddUser returns a configuration for a new user, known to the API server by a client certificate.
// The user has only those rights that role bindings give to the name or the groups.
func (c *ControlPlane) AddUser(name string, groups ...string) (*rest.Config, error) {
	c.users.Lock()
	defer c.users.Unlock()

	user, err := c.plane.AddUser(envtest.User{Name: name, Groups: groups},
		&rest.Config{QPS: c.Config.QPS, Burst: c.Config.Burst})
	if err != nil {
		return nil, fmt.Errorf("add user %q: %w", name, err)
	}

	return user.Config(), nil
}

// Restart ends the API server, calls meanwhile, and starts the API server again at the same
// address. etcd keeps running. The second process has no log.
func (c *ControlPlane) Restart(meanwhile func()) error {
	server := c.plane.APIServer
	_ = server.Stop() // It returns an error when the process is slow to end, and kills it then.
	// The last program that was started is the API server, or else etcd was started again after it.
	pids := c.guard.pids()
	if err := awaitExit(pids[len(pids)-1:]); err != nil {
		return fmt.Errorf("restart API server: %w", err)
	}

	meanwhile()
	server.Out, server.Err = nil, nil // The files are closed.
	if err := server.Start(); err != nil {
		return fmt.Errorf("restart API server: %w", err)
	}

	return nil
}

// BackUp copies the data of etcd to a directory, which must not exist. The API server and etcd are
// stopped during the copy.
func (c *ControlPlane) BackUp(to string) error {
	return c.withoutEtcd(func(data string) error { return os.CopyFS(to, os.DirFS(data)) })
}

// Restore ends the API server and etcd, and starts them again with the data of a backup.
func (c *ControlPlane) Restore(from string) error {
	return c.withoutEtcd(func(data string) error {
		return errors.Join(os.RemoveAll(data), os.CopyFS(data, os.DirFS(from)), os.Chmod(data, 0o700))
	})
}

func (c *ControlPlane) withoutEtcd(meanwhile func(data string) error) error {
	etcd := c.plane.Etcd
	var failed error
	err := c.Restart(func() {
		_ = etcd.Stop() // As for the API server.
		failed = errors.Join(awaitExit(c.guard.pids()), meanwhile(etcd.DataDir))
		etcd.Out = nil
		etcd.Err = nil
		failed = errors.Join(failed, etcd.Start())
	})

	return errors.Join(err, failed)
}

// Another starts one more API server on the same etcd, with the same keys and users, and returns
// its URL. Its flags are the flags of the first API server, and more, which are written with
// dashes. It ends with Stop. It needs Linux and has no log.
func (c *ControlPlane) Another(ctx context.Context, more ...string) (host string, err error) {
	holder, port, err := machine.ReservePort()
	if err != nil {
		return "", err
	}

	c.holders = append(c.holders, holder)

	pids := c.guard.pids()
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pids[len(pids)-1]))
	if err != nil {
		return "", fmt.Errorf("another API server: %w", err)
	}

	flags := slices.DeleteFunc(strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")[1:], func(flag string) bool {
		return strings.HasPrefix(flag, "--secure-port=")
	})
	server := exec.Command(c.guard.path("kube-apiserver"),
		slices.Concat(flags, []string{"--secure-port=" + strconv.Itoa(port)}, more)...)
	server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // As those of envtest: the guard ends the group.
	if err := server.Start(); err != nil {
		return "", fmt.Errorf("another API server: %w", err)
	}

	go func() { _ = server.Wait() }() // The guard waits until the process is gone.

	config := rest.CopyConfig(c.Config)
	config.Host = "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	asked, err := client.New(config, client.Options{})
	if err != nil {
		return "", err
	}

	missing := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, startTimeout, true, func(ctx context.Context) (bool, error) {
		return asked.Get(ctx, client.ObjectKey{Name: metav1.NamespaceDefault}, new(corev1.Namespace)) == nil, nil
	})
	if missing != nil {
		return "", fmt.Errorf("another API server: %w", missing)
	}

	return config.Host, nil
}

// Stop ends the API server and etcd, waits for their end, and removes their data and the
// kubeconfig. It takes about a second, and a few seconds when watches are open: end the clients
// first. Further calls return the result of the first call. An error means that a process or a file
// is left.
func (c *ControlPlane) Stop() error {
	c.stopOnce.Do(func() {
		begin := time.Now()
		if c.plane != nil {
			// It returns an error when a process is slow to end. The guard kills the process, so
			// only the error of the guard counts.
			if err := c.plane.Stop(); err != nil {
				c.logger.Debug("control plane was slow to stop", "error", err)
			}
		}

		c.stopErr = c.guard.close()
		for _, holder := range c.holders {
			_ = syscall.Close(holder) // It was bound only.
		}

		if err := os.Remove(c.Kubeconfig); err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.stopErr = errors.Join(c.stopErr, err)
		}
		if c.stopErr != nil {
			c.stopErr = fmt.Errorf("stop control plane: %w", c.stopErr)
		}

		c.logger.Info("control plane stopped", "duration", time.Since(begin))
	})

	return c.stopErr
}

// logs are the files that etcd and the API server write to. Files, not pipes: they need no reader, and
// they stay after this process.
type logs [2]*os.File

// openLogs creates the files in dir, or in fallback when dir is empty.
func openLogs(dir, fallback string) (l logs, err error) {
	for i, name := range []string{"etcd.log", "kube-apiserver.log"} {
		file, failed := os.Create(filepath.Join(cmp.Or(dir, fallback), name))
		l[i], err = file, errors.Join(err, failed)
	}
	return l, err
}

func (l logs) close() {
	for _, file := range l {
		_ = file.Close()
	}
}

// tail is the end of each log, for an error message.
func (l logs) tail() string {
	var text strings.Builder
	for _, f := range l {
		fmt.Fprintf(&text, "\nend of %s:\n%s", filepath.Base(f.Name()), machine.TailOf(f.Name(), 10))
	}
	return text.String()
}

// Objects calls each for all objects of any kind that can be listed, except Events, because API
// servers write Events about a deleted Service.
func (c *ControlPlane) Objects(ctx context.Context, each func(kind string, object *metav1.PartialObjectMetadata)) error {
	asked, err := discovery.NewDiscoveryClientForConfig(c.Config)
	if err != nil {
		return err
	}

	groups, err := asked.ServerPreferredResources()
	if err != nil {
		return err
	}

	kinds := 0
	for _, group := range groups {
		for _, resource := range group.APIResources {
			if !slices.Contains(resource.Verbs, "list") || resource.Kind == "Event" {
				continue
			}

			kinds++
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(schema.FromAPIVersionAndKind(group.GroupVersion, resource.Kind+"List"))
			if err := client.IgnoreNotFound(c.Client.List(ctx, list)); err != nil { // A definition may go.
				return err
			}

			for i := range list.Items {
				each(resource.Kind, &list.Items[i])
			}
		}
	}

	if kinds < 20 {
		return fmt.Errorf("only %d kinds were read", kinds)
	}

	return nil
}

// StartT is [Start] for a test: a failure ends the test, and the control plane stops when the test
// and its subtests are over. It may build the binaries first. To see the progress of the build,
// build them before the test run.
func StartT(t testing.TB, opts Options) *ControlPlane {
	t.Helper()
	return StartAllT(t, opts)[0]
}

// StartAllT is [StartAll] for a test.
func StartAllT(t testing.TB, all ...Options) []*ControlPlane {
	t.Helper()

	// The first call counts. Without any, controller-runtime logs a stack trace.
	log.SetLogger(logr.Discard())
	planes, stop, err := StartAll(t.Context(), all)
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}

	return planes
}

// atOnce is the number of control planes that start at the same time.
const atOnce = 3

// StartAll starts control planes concurrently, and returns them in the order of their options. The
// caller must call stop, also after an error.
func StartAll(ctx context.Context, all []Options) (planes []*ControlPlane, stop func() error, err error) {
	planes = make([]*ControlPlane, len(all))
	var starts errgroup.Group
	starts.SetLimit(atOnce)

	for i := range all {
		starts.Go(func() (err error) {
			planes[i], err = Start(ctx, all[i])
			return err
		})
	}

	return planes, func() error {
		var stops errgroup.Group
		for _, plane := range planes {
			if plane != nil {
				stops.Go(plane.Stop)
			}
		}
		return stops.Wait()
	}, starts.Wait()
}
