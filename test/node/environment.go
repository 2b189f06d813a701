package node

import (
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// environment returns that of a container, in which later variables may refer to earlier ones.
func environment(container *corev1.Container, fields, base map[string]string) ([]string, error) {
	values := maps.Clone(base)

	for i := range container.Env {
		variable := &container.Env[i]

		value := expand(variable.Value, values)
		if variable.ValueFrom != nil {
			var known bool
			if variable.ValueFrom.FieldRef != nil {
				value, known = fields[variable.ValueFrom.FieldRef.FieldPath]
			}

			if !known {
				return nil, fmt.Errorf("variable %s: the stand-in does not know where its value is from", variable.Name)
			}
		}

		values[variable.Name] = value
	}

	if len(container.EnvFrom) > 0 {
		return nil, fmt.Errorf("container %s: the stand-in does not know envFrom", container.Name)
	}

	list := make([]string, 0, len(values))
	for name, value := range values {
		list = append(list, name+"="+value)
	}

	return list, nil
}

// expand replaces $(NAME); $$ stands for one $, and what is unknown stays (k8s.io/api/core/v1, EnvVar.Value).
func expand(text string, values map[string]string) string {
	var out strings.Builder

	for i := 0; i < len(text); i++ {
		rest := text[i:]

		switch end := strings.IndexByte(rest, ')'); {
		case strings.HasPrefix(rest, "$$"):
			out.WriteByte('$')
			i++
		case strings.HasPrefix(rest, "$(") && end > 0:
			value, known := values[rest[2:end]]
			if !known {
				value = rest[:end+1]
			}

			out.WriteString(value)
			i += end
		default:
			out.WriteByte(text[i])
		}
	}

	return out.String()
}
