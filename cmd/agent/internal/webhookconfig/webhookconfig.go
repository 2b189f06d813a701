// Package webhookconfig is the command "agent webhook-configuration": it prints the
// ValidatingWebhookConfiguration that makes the API server of a runtime call the agent.
package webhookconfig

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// ErrUsage means that the arguments are wrong. The error that wraps it names all mistakes.
var ErrUsage = errors.New("wrong arguments, --help lists all")

const usage = `agent webhook-configuration prints the ValidatingWebhookConfiguration for a runtime (SKR), in YAML.

It needs no cluster. The watches come from Watcher resources (-f), or one from --manager and --resource.
Apply the output after the agent is ready:

  agent webhook-configuration --ca-cert ca.crt -f watchers.yaml --canary runtime-watcher/runtime-watcher-canary |
    kubectl apply --server-side -f -

Flags:
`

const defaultService = "runtime-watcher/runtime-watcher"

// Run prints the configuration that args ask for. It returns [flag.ErrHelp] after it has printed
// the help.
func Run(args []string, stdin io.Reader, stdout io.Writer) error {
	s := newSettings(stdout)

	if err := s.flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}

	watches, endpoint, err := s.read(stdin)
	if err != nil {
		return fmt.Errorf("%w:\n%w", ErrUsage, err)
	}

	configuration, err := admission.WebhookConfiguration(s.name, endpoint, watches, s.opts)
	if err != nil {
		return fmt.Errorf("%w:\n%w", ErrUsage, err)
	}

	text, err := yaml.Marshal(configuration)
	if err != nil {
		return fmt.Errorf("write the configuration as YAML: %w", err)
	}

	_, err = stdout.Write(text)

	return err
}

type settings struct {
	flags *flag.FlagSet

	name, caFile, file         string
	url, service               string
	manager, resource          string
	canary, excludedNamespaces string
	matchConditions            bool
	opts                       admission.ConfigurationOptions
}

func newSettings(help io.Writer) *settings {
	s := &settings{flags: flag.NewFlagSet("agent webhook-configuration", flag.ContinueOnError)}
	f := s.flags

	f.SetOutput(io.Discard)
	f.Usage = func() {
		f.SetOutput(help)
		_, _ = io.WriteString(help, usage) // A reader that has gone needs no help.

		f.PrintDefaults()
	}

	f.StringVar(&s.file, "f", "", "`file` with Watcher resources in YAML; - is the standard input")
	f.StringVar(&s.manager, "manager", "", "`name` of the manager that gets the events, with --resource")
	f.StringVar(&s.resource, "resource", "",
		"`group/version/resource` to watch, such as apps/v1/deployments or v1/configmaps")
	f.StringVar(&s.name, "name", "runtime-watcher", "`name` of the configuration")
	f.StringVar(&s.service, "service", "",
		"`namespace/name[:port]` of the agent's Service (default "+defaultService+")")
	f.StringVar(&s.url, "url", "", "`URL` of the agent, instead of --service")
	f.StringVar(&s.caFile, "ca-cert", "",
		"`file` with the CA certificates of the agent's serving certificate, PEM (required)")
	f.DurationVar(&s.opts.Timeout, "timeout", 2*time.Second,
		"`duration` that a write waits for the agent at most, 1s to 30s")
	f.StringVar(&s.canary, "canary", "", "`namespace/name` of the canary's Lease (CANARY_LEASE of the agent)")
	f.BoolVar(&s.matchConditions, "match-conditions", true,
		"let the API server (Kubernetes 1.28 or later) skip the writes that change nothing")
	f.StringVar(&s.excludedNamespaces, "exclude-namespaces", "",
		"`names,...` of the namespaces in which nothing is watched (default kube-system and that of the Service)")

	return s
}

// read turns the flags into arguments of [admission.WebhookConfiguration]. Its error names all
// mistakes.
func (s *settings) read(stdin io.Reader) (watches []watch.Watch, endpoint admission.Endpoint, err error) {
	argument := option.Unless(s.flags.NArg() == 0, "%.64q: want flags only", s.flags.Arg(0))
	watches, noWatches := s.watches(stdin)
	endpoint, noEndpoint := s.endpoint()
	var noCanary error
	if s.canary != "" {
		s.opts.Canary, noCanary = namespacedName("canary", s.canary)
	}
	s.opts.NoMatchConditions = !s.matchConditions
	if s.excludedNamespaces != "" {
		s.opts.ExcludedNamespaces = strings.Split(s.excludedNamespaces, ",")
	}
	return watches, endpoint, errors.Join(argument, noWatches, noEndpoint, noCanary)
}

func (s *settings) watches(stdin io.Reader) ([]watch.Watch, error) {
	if s.file == "" {
		return s.oneWatch()
	}
	if s.manager != "" || s.resource != "" {
		return nil, errors.New("-f and --manager or --resource: want one of them")
	}
	from := stdin
	if s.file != "-" {
		file, err := os.Open(s.file)
		if err != nil {
			return nil, fmt.Errorf("-f: %w", err)
		}
		defer file.Close()
		from = file
	}
	watches, err := ReadWatchers(from)
	if err != nil {
		return nil, fmt.Errorf("-f: %w", err)
	}
	if len(watches) == 0 {
		return nil, errors.New("-f: want at least one Watcher, have none")
	}
	return watches, nil
}

func (s *settings) endpoint() (e admission.Endpoint, err error) {
	e.URL = s.url
	switch {
	case s.url == "":
		err = s.readService(&e)
	case s.service != "":
		err = errors.New("--url and --service: want one of them")
	}
	if s.caFile == "" {
		return e, errors.Join(errors.New("--ca-cert: missing, want a file with CA certificates"), err)
	}
	var unread error
	if e.CABundle, unread = os.ReadFile(s.caFile); unread != nil {
		err = errors.Join(fmt.Errorf("--ca-cert: want a file with CA certificates: %w", unread), err)
	}
	return e, err
}

func (s *settings) readService(e *admission.Endpoint) (err error) {
	name, port, hasPort := strings.Cut(cmp.Or(s.service, defaultService), ":")
	if hasPort {
		n, err := strconv.ParseInt(port, 10, 32)
		if err != nil {
			return fmt.Errorf("--service: port %.20q: want a number", port)
		}
		e.ServicePort = int32(n)
	}
	e.Service, err = namespacedName("service", name)
	return err
}

func namespacedName(flagName, text string) (types.NamespacedName, error) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok || namespace == "" || name == "" {
		return types.NamespacedName{}, fmt.Errorf("--%s: %.80q: want namespace/name", flagName, text)
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

// versionPattern matches the versions of Kubernetes. No API group has such a name.
var versionPattern = regexp.MustCompile(`^v\d+((alpha|beta)\d+)?$`)

// parseResource reads version/resource of the core group, or group/version/resource.
func parseResource(text string) (schema.GroupVersionResource, error) {
	parts := strings.Split(text, "/")
	if len(parts) == 2 { // Version and resource.
		parts = slices.Insert(parts, 0, "")
	}
	if len(parts) != 3 || versionPattern.MatchString(parts[0]) { // Group, version and resource.
		return schema.GroupVersionResource{}, fmt.Errorf("--resource: %.80q: want group/version/resource, or "+
			"version/resource of the core group, without a subresource: "+
			"a Watcher of -f may have one, or the field status", text)
	}
	return schema.GroupVersionResource{Group: parts[0], Version: parts[1], Resource: parts[2]}, nil
}

// ReadWatchers reads Watchers in YAML documents or lists. Other kinds are refused, and conditions,
// which the code in the control plane alone can check.
func ReadWatchers(from io.Reader) (watches []watch.Watch, err error) {
	text, err := io.ReadAll(from)
	if err != nil {
		return nil, err
	}
	for part := range bytes.SplitSeq(text, []byte("\n---")) {
		if len(bytes.TrimSpace(bytes.TrimPrefix(bytes.TrimSpace(part), []byte("---")))) == 0 {
			continue
		}
		var document watch.Document
		if err := yaml.Unmarshal(part, &document); err != nil {
			return nil, err
		}
		found, err := document.Watches()
		if err != nil {
			return nil, err
		}
		watches = append(watches, found...)
	}
	return watches, withoutConditions(watches)
}

func withoutConditions(watches []watch.Watch) error {
	var problems []error
	for _, w := range watches {
		if len(w.Conditions) > 0 {
			problems = append(problems, fmt.Errorf("watcher %.80q: want no spec.matchConditions: a condition that "+
				"fails loses writes, and only an installer in the control plane guards them", w.Name.Name))
		}
	}
	return errors.Join(problems...)
}

// oneWatch is the watch of --manager and --resource. Its error names all mistakes.
func (s *settings) oneWatch() ([]watch.Watch, error) {
	if s.manager == "" || s.resource == "" {
		return nil, errors.New("-f, or --manager and --resource: want Watchers or one watch")
	}
	resource, resourceErr := parseResource(s.resource)
	manager, managerErr := core.ParseManager(s.manager)
	if err := errors.Join(managerErr, resourceErr); err != nil {
		return nil, err
	}
	return []watch.Watch{{
		Name:    types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: s.manager},
		Manager: manager, Resource: resource, Field: core.FieldSpec,
	}}, nil
}
