// Package webhookconfig is the command "agent webhook-configuration": it prints the
// ValidatingWebhookConfiguration that makes the API server of a runtime call the agent.
package webhookconfig

import (
	"bufio"
	"bytes"
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

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/keys"
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
	c := newCommand(stdin, stdout)
	if err := c.flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}

	configuration, err := c.newConfiguration()
	if err != nil {
		return fmt.Errorf("%w:\n%w", ErrUsage, err)
	}

	text, err := yaml.Marshal(configuration)
	if err != nil {
		return fmt.Errorf("write the configuration as YAML: %w", err)
	}

	// A notice is a comment, because kubectl reads the output and a person reads the notice.
	var comments strings.Builder
	for _, notice := range c.notices {
		comments.WriteString("# " + strings.ReplaceAll(notice, "\n", " ") + "\n")
	}

	_, err = io.WriteString(stdout, comments.String()+string(text))
	return err
}

// command is one run of the program. newCommand creates its flags. The values of the flags set the
// other fields.
type command struct {
	flags    *flag.FlagSet
	problems []error // of the values of flags
	notices  []string

	name            string
	endpoint        admission.Endpoint
	watches         []watch.Watch
	one             watch.Watch // of --manager and --resource
	matchConditions bool
	opts            admission.ConfigurationOptions
}

func newCommand(stdin io.Reader, help io.Writer) *command {
	c := &command{flags: flag.NewFlagSet("agent webhook-configuration", flag.ContinueOnError)}
	f := c.flags
	f.SetOutput(io.Discard)
	f.Usage = func() {
		f.SetOutput(help)
		_, _ = io.WriteString(help, usage) // An error means that the reader of the help has gone.
		f.PrintDefaults()
	}

	// A wrong value does not end the parse, so that all wrong values are reported. An empty value
	// counts as no value.
	read := func(name, usage string, value func(text string) error) {
		f.Func(name, usage, func(text string) error {
			if text == "" {
				return nil
			}

			if err := value(text); err != nil {
				c.problems = append(c.problems, fmt.Errorf("--%s: %w", name, err))
			}
			return nil
		})
	}

	read("f", "`file` with Watcher resources in YAML; - is the standard input", func(path string) (err error) {
		c.watches, err = readFile(path, stdin)
		return err
	})
	read("manager", "`name` of the manager that gets the events, with --resource", func(text string) (err error) {
		c.one.Manager, err = core.ParseManager(text)
		return err
	})
	read("resource", "`group/version/resource` to watch, such as apps/v1/deployments or v1/configmaps",
		func(text string) (err error) {
			c.one.Resource, err = parseResource(text)
			return err
		})

	f.StringVar(&c.name, "name", "runtime-watcher", "`name` of the configuration")
	read("service", "`namespace/name[:port]` of the agent's Service (default "+defaultService+")", c.readService)
	f.StringVar(&c.endpoint.URL, "url", "", "`URL` of the agent, instead of --service")
	read("ca-cert", "`file` with the CA certificates of the agent's serving certificate, PEM (required)",
		c.readBundle)
	f.DurationVar(&c.opts.Timeout, "timeout", 2*time.Second,
		"`duration` that a write waits for the agent at most, 1s to 30s")
	read("canary", "`namespace/name` of the canary's Lease (CANARY_LEASE of the agent)", func(text string) (err error) {
		c.opts.Canary, err = namespacedName(text)
		return err
	})
	read("webhook-domain",
		"`domain` that ends the names of the webhooks, as in the names of the operator (default kyma-project.io)",
		func(text string) error {
			c.opts.WebhookDomain = text
			return nil
		})

	annotation := "`name` of the annotation of owners (OWNER_ANNOTATION of the agent)"
	read("owner-annotation", annotation, func(text string) error {
		c.opts.OwnerAnnotation = text
		return nil
	})
	f.BoolVar(&c.matchConditions, "match-conditions", true,
		"let the API server (Kubernetes 1.28 or later) skip the writes that change nothing")
	read("exclude-namespaces",
		"`names,...` of the namespaces in which nothing is watched (default kube-system and that of the Service)",
		func(text string) error {
			c.opts.ExcludedNamespaces = strings.Split(text, ",")
			return nil
		})
	return c
}

func (c *command) newConfiguration() (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	if c.one.Manager != "" || c.one.Resource.Resource != "" {
		c.one.Name = types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: string(c.one.Manager)}
		c.watches = append(c.watches, c.one)
	}

	if c.endpoint.URL == "" && c.endpoint.Service.Name == "" {
		c.problems = append(c.problems, c.readService(defaultService))
	}

	c.opts.NoMatchConditions = !c.matchConditions
	err := errors.Join(append(c.problems,
		option.Unless(c.flags.NArg() == 0, "%.64q: want flags only", c.flags.Arg(0)),
		option.Unless(len(c.watches) > 0, "-f, or --manager and --resource: want at least one watch, have none"),
		option.Unless(len(c.endpoint.CABundle) > 0, "--ca-cert: want a file with CA certificates"))...)
	if err != nil {
		return nil, err
	}

	return admission.WebhookConfiguration(c.name, c.endpoint, c.watches, c.opts)
}

func (c *command) readService(text string) (err error) {
	name, port, hasPort := strings.Cut(text, ":")
	if hasPort {
		n, err := strconv.ParseInt(port, 10, 32)
		if err != nil {
			return fmt.Errorf("port %.20q: want a number", port)
		}
		c.endpoint.ServicePort = int32(n)
	}

	c.endpoint.Service, err = namespacedName(name)
	return err
}

func (c *command) readBundle(path string) error {
	text, err := os.ReadFile(path) //nolint:gosec // The user names the file.
	if err != nil {
		return err
	}

	bundle, err := keys.ParseBundle(text)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}

	c.endpoint.CABundle = text
	if len(bundle.Skipped) > 0 {
		c.endpoint.CABundle = bundle.PEM()
	}

	for _, skipped := range bundle.Skipped {
		c.notices = append(c.notices, fmt.Sprintf("--ca-cert: %s: %s", path, skipped))
	}
	return nil
}

func readFile(path string, stdin io.Reader) ([]watch.Watch, error) {
	if path == "-" {
		return ReadWatchers(stdin)
	}

	text, err := os.ReadFile(path) //nolint:gosec // The user names the file.
	if err != nil {
		return nil, err
	}

	return ReadWatchers(bytes.NewReader(text))
}

func namespacedName(text string) (types.NamespacedName, error) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok || namespace == "" || name == "" {
		return types.NamespacedName{}, fmt.Errorf("%.80q: want namespace/name", text)
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

// versionPattern matches the versions of Kubernetes. No API group has the form of a version.
var versionPattern = regexp.MustCompile(`^v\d+((alpha|beta)\d+)?$`)

// parseResource reads version/resource of the core group, or group/version/resource.
func parseResource(text string) (schema.GroupVersionResource, error) {
	parts := strings.Split(text, "/")
	if len(parts) == 2 { // Version and resource.
		parts = slices.Insert(parts, 0, "")
	}
	if len(parts) != 3 || versionPattern.MatchString(parts[0]) { // Group, version and resource.
		return schema.GroupVersionResource{}, fmt.Errorf("%.80q: want group/version/resource, or "+
			"version/resource of the core group, without a subresource: "+
			"a Watcher of -f may have one, or the field status", text)
	}

	return schema.GroupVersionResource{Group: parts[0], Version: parts[1], Resource: parts[2]}, nil
}

// ReadWatchers reads Watchers in YAML documents or lists. Other kinds are refused, and fields that
// a Watcher does not have or has twice, and conditions, which only the code in the control plane
// can check.
func ReadWatchers(from io.Reader) (watches []watch.Watch, err error) {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(from))
	for {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return watches, withoutConditions(watches)
		}
		if err != nil {
			return nil, err
		}

		content, err := yaml.YAMLToJSONStrict(text)
		if err != nil {
			return nil, err
		}
		if string(content) == "null" { // Empty.
			continue
		}

		document, err := watch.ParseDocument(content)
		if err != nil {
			return nil, err
		}

		found, err := document.Watches()
		if err != nil {
			return nil, err
		}

		watches = append(watches, found...)
	}
}

func withoutConditions(watches []watch.Watch) error {
	var problems []error
	for _, w := range watches {
		problems = append(problems, option.Unless(len(w.Conditions) == 0,
			"watcher %.80q: want no spec.matchConditions: a condition that fails loses writes, "+
				"and only an installer in the control plane guards them", w.Name.Name))
	}
	return errors.Join(problems...)
}
