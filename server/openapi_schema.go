package server

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/pawl-lock/pawl/transport"
)

// object is a piece of a JSON document.
type object = map[string]any

// schemas makes JSON Schemas of the messages of package transport: one component for each type, from its fields, their
// json tags and the bounds that the decoder goes by. A field without omitempty is always there.
type schemas struct {
	components object
	requests   map[reflect.Type]bool // told from answers by who asked first: their fields are bounded
}

func newSchemas() *schemas { return &schemas{object{}, map[reflect.Type]bool{}} }

// of gives a reference to the schema of a message, and makes that when it is asked for first.
func (s *schemas) of(message reflect.Type, request bool) object {
	name := message.Name()
	if _, made := s.components[name]; !made {
		s.components[name] = object{} // in case it refers to itself
		s.requests[message] = request
		s.components[name] = s.message(message, request)
	} else if s.requests[message] != request {
		panic(fmt.Sprintf("server: %s is used in requests and in answers, whose bounds differ", name))
	}
	return object{"$ref": "#/components/schemas/" + name}
}

func (s *schemas) message(message reflect.Type, request bool) object {
	properties, required := object{}, []string{}
	for i := range message.NumField() {
		f := message.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		schema := s.value(name, f.Type, request)
		describeField(schema, name)
		properties[name] = schema
		if options != "omitempty" {
			required = append(required, name)
		}
	}
	out := object{"type": "object", "properties": properties}
	if request {
		out["additionalProperties"] = false
	}
	if len(required) > 0 {
		out["required"] = required
	}
	for key, value := range rules()[message.Name()] {
		out[key] = value
	}
	return out
}

// value gives the schema of a field called name.
func (s *schemas) value(name string, t reflect.Type, request bool) object {
	switch {
	case t == reflect.TypeFor[transport.Token]():
		return tokenSchema(request)
	case t == reflect.TypeFor[transport.Code]():
		return object{"type": "string", "enum": transport.Codes()}
	case t == reflect.TypeFor[transport.Applied]():
		return object{"type": "string", "enum": []transport.Applied{transport.AppliedNo, transport.AppliedUnknown}}
	}
	switch t.Kind() {
	case reflect.String:
		return textSchema(name, request)
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return numberSchema(name, request)
	case reflect.Pointer:
		return s.value(name, t.Elem(), request)
	case reflect.Slice:
		out := object{"type": "array"}
		if t.Elem().Kind() == reflect.String {
			out["items"] = object{"type": "string"}
		} else {
			out["items"] = s.of(t.Elem(), request)
		}
		if request {
			out["minItems"], out["maxItems"] = 1, transport.MaxLocks
		}
		return out
	case reflect.Map:
		text := object{"type": "string", "maxLength": transport.MaxLabelValue, "pattern": withoutControls}
		key := object{"minLength": 1, "maxLength": transport.MaxLabel, "pattern": withoutControls}
		return object{"type": "object", "maxProperties": transport.MaxLabels, "propertyNames": key, "additionalProperties": text}
	}
	panic(fmt.Sprintf("server: field %s has a type that no schema is known for", name))
}

// Patterns of texts. That lengths are counted in bytes, which JSON Schema cannot say, is said in words and in x-maxBytes;
// maxLength counts characters, of which there are never more.
const (
	withoutControls = `^[^\x00-\x1f\x7f-\x9f]*$`
	withoutNUL      = `^[^\x00]*$`
	sessionID       = `^[0-9a-f]{32}$`
	maxWireNumber   = 1<<53 - 1
)

func textSchema(name string, request bool) object {
	out := object{"type": "string"}
	if words, ok := enumerations[name]; ok {
		out["enum"] = words
		return out
	}
	if !request {
		return out
	}
	most, bounded := transport.TextBound(name)
	switch {
	case name == "session":
		out["pattern"] = sessionID
		return out
	case name == "value":
		out["pattern"] = withoutNUL
	default:
		out["minLength"], out["pattern"] = 1, withoutControls
	}
	if bounded {
		out["maxLength"], out["x-maxBytes"] = most, most
	}
	return out
}

func numberSchema(name string, request bool) object {
	low, high, orZero, bounded := transport.NumberBounds(name)
	out := object{"type": "integer", "format": "int64"}
	switch {
	case request && bounded && orZero:
		out["oneOf"] = []object{{"const": 0}, {"minimum": low, "maximum": high}}
	case request && bounded:
		out["minimum"], out["maximum"] = low, high
	case bounded && low < 0:
		out["minimum"], out["maximum"] = low, high
	default:
		out["minimum"] = 0
	}
	return out
}

func tokenSchema(request bool) object {
	number := object{"type": "integer", "format": "int64", "minimum": 1, "maximum": int64(maxWireNumber)}
	if !request {
		return number
	}
	return object{"oneOf": []object{number, {"type": "string", "pattern": `^[1-9][0-9]{0,15}$`}}}
}

// describeField adds what is said of a field beside its bounds.
func describeField(schema object, name string) {
	if text := fieldWords[name]; text != "" {
		schema["description"] = text
	}
	if most, ok := schema["x-maxBytes"]; ok {
		schema["description"] = fmt.Sprintf("%s At most %d bytes of UTF-8.", schema["description"], most)
	}
}
